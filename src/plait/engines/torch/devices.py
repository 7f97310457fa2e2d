"""Devices: the CUDA devices that torch can use here.

``python -m plait.engines.torch.devices`` prints them as one JSON line, so that a process that does
without torch can ask. Untested on a GPU.
"""

import json
from typing import Any

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Of weights, activations and cache, by the names that settings use."""


def cuda_devices() -> list[dict[str, Any]]:
    """Name and free bytes of each, in torch's order."""
    found = []
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free_bytes, _ = torch.cuda.mem_get_info(i)
        found.append({"name": torch.cuda.get_device_name(i), "free_bytes": free_bytes})
    return found


if __name__ == "__main__":
    print(json.dumps(cuda_devices()))
