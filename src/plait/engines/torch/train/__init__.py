"""LoRA training: parameters, micro-batches, the forward pass with gradients, losses, AdamW, state."""
