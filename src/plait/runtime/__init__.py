"""The live runtime: views from facts, plans from policies, plans applied to worker processes."""
