"""Costs: the protocol that the simulator asks, whether the numbers are computed or measured.

A *slice* is the devices of one worker, ``n`` of one kind, that hold one copy of a model (tensor
parallel where n > 1). All times are for the slice alone and at full share.
"""

from typing import Protocol


class Costs(Protocol):
    """Times in seconds, sizes in bytes, of one model on one slice."""

    @property
    def peak_flops(self) -> float:
        """FLOP/s of the slice."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Of the slice."""
        ...

    @property
    def weight_bytes(self) -> int:
        """One copy of the model on the slice."""
        ...

    @property
    def train_bytes(self) -> int:
        """Gradients, moments and master weights of a full-weight run (or of an adapter)."""
        ...

    @property
    def kv_bytes_per_token(self) -> int: ...

    def decode_s(self, n_rows: int, context_tokens: int, n_adapters: int = 0) -> float:
        """One forward step of ``n_rows`` sequences with ``context_tokens`` in the cache in all."""
        ...

    def prefill_s(
        self, n_tokens: int, context_tokens: int = 0, n_adapters: int = 0, n_samples: int = 1
    ) -> float:
        """Computing ``n_tokens`` new tokens, in chunks that run at prefill's rate.

        They are divided evenly over ``n_samples`` sequences, which have ``context_tokens`` in the
        cache in all.
        """
        ...

    def train_s(self, n_tokens: int, n_samples: int) -> float:
        """Gradient of ``n_tokens`` of ``n_samples`` sequences, and the optimizer step."""
        ...

    def reference_s(self, n_tokens: int, n_samples: int = 1) -> float:
        """Log-probs of ``n_tokens`` of ``n_samples`` sequences without gradients."""
        ...

    def sync_s(self) -> float:
        """New weights from training to rollout."""
        ...

    def offload_s(self) -> float:
        """The run's state from the slice to host memory."""
        ...

    def load_s(self) -> float:
        """The way back."""
        ...

    def flops(self, n_forward: int, n_backward: int = 0) -> float:
        """Useful FLOPs of tokens that are computed forwards and backwards."""
        ...
