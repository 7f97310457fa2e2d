"""Memory: which of torch's errors say that there is no more of it."""

import torch


def out_of_memory(error: Exception) -> bool:
    """True if less at once might do."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    said = str(error) if isinstance(error, RuntimeError) else ""
    return "can't allocate memory" in said or "not enough memory" in said
