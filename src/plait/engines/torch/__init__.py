"""The embedded engine in PyTorch: rollout over a block-managed KV cache, and LoRA training.

The only part of plait, with ``adapters`` and the tool processes, that imports torch.
"""
