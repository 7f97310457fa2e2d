"""Memory: which of torch's errors say that there is no more of it."""

import torch


def out_of_memory(error: Exception) -> bool:
    """True if less at once might do."""
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or "can't allocate memory" in str(error)
        or "not enough memory" in str(error)
    )
