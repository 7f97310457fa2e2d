"""Figures of the torch engine on one CUDA device, on randomly initialised models.

Nothing large travels: the model is made on the spot. **Not yet measured on a GPU.**
"""
