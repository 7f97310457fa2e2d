"""Memory: only what torch says of memory is about memory."""

import pytest
import torch

from plait.engines.torch.memory import out_of_memory


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried"), True),
        (RuntimeError("shapes do not match"), False),
        (TypeError("exp() got an unexpected keyword argument 'not enough memory'"), False),
    ],
)
def test_only_what_torch_says_of_memory_is(error: Exception, said: bool) -> None:
    assert out_of_memory(error) is said
