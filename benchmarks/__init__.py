"""Figures by name: ``python -m benchmarks NAME`` measures one afresh and says if its bar is met."""
