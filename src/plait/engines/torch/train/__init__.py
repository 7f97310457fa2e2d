"""LoRA training: parameters, micro-batches, the forward pass, losses, AdamW, state."""
