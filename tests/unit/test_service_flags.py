"""Flags: a tenant's clients hold themselves to its limits."""

from plait.service.flags import CHUNK_BYTES, GRADIENT_BYTES, MIN_CHUNK_BYTES, SAMPLES, flags_of
from plait.service.limits import TenantLimits

SAMPLES_FLAG = "sample_max_concurrent_requests"
CHUNK_FLAG = "fwdbwd_max_chunk_bytes_count"
GRADIENTS_FLAG = "fwdbwd_dispatch_bytes_semaphore_size"


def test_wide_limits_tell_what_everybody_is_told() -> None:
    told = flags_of(TenantLimits())
    assert told == {
        SAMPLES_FLAG: SAMPLES,
        CHUNK_FLAG: CHUNK_BYTES,
        GRADIENTS_FLAG: GRADIENT_BYTES,
    }
    assert flags_of(TenantLimits(open_requests=None, body_bytes=None)) == {}


def test_narrow_ones_hold_clients_below_them() -> None:
    told = flags_of(TenantLimits(open_requests=100, body_bytes=8_000_000))
    assert told == {SAMPLES_FLAG: 50, CHUNK_FLAG: 2_000_000, GRADIENTS_FLAG: 8_000_000}
    least = flags_of(TenantLimits(open_requests=1, body_bytes=1))
    assert least[SAMPLES_FLAG] == 1
    assert least[CHUNK_FLAG] == least[GRADIENTS_FLAG] == MIN_CHUNK_BYTES
