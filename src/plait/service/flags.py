"""Flags: what a tenant's clients are told to hold themselves to, by its limits.

A client that sends no more than its tenant may have open is never refused, so it wastes no time in
asking again. Names are the Tinker SDK's. Where a limit is wide, a client keeps to what everybody
is told.
"""

from plait.service.limits import TenantLimits

SAMPLES = 2000
"""Samples of one client that are open at once, as everybody is told."""
CHUNK_BYTES = 5_000_000
"""Of a gradient that is sent in one request, likewise."""
GRADIENT_BYTES = 50_000_000
"""Of all gradients that a client sends at once; the SDK's own bound."""
MIN_CHUNK_BYTES = 2**16
PARTS = 4
"""Chunks that a tenant's bytes should be enough for: the next are sent while one is read."""


def flags_of(limits: TenantLimits) -> dict[str, int]:
    """Flags that go over everybody's."""
    told = {}
    if limits.open_requests is not None:
        half = limits.open_requests // 2  # the rest is for its other requests
        told["sample_max_concurrent_requests"] = min(SAMPLES, max(1, half))
    if limits.body_bytes is not None:
        chunk = max(MIN_CHUNK_BYTES, limits.body_bytes // PARTS)
        told["fwdbwd_max_chunk_bytes_count"] = min(CHUNK_BYTES, chunk)
        told["fwdbwd_dispatch_bytes_semaphore_size"] = min(
            GRADIENT_BYTES, max(chunk, limits.body_bytes)
        )
    return told
