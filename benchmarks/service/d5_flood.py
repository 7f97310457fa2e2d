"""D5: 512 samples at once beside 64 training writes of 500 KB: nothing fails, and heartbeats are
answered. On the built-in tiny model: what is measured is the way to the engine and back."""

from benchmarks.figure import Measured
from benchmarks.service.clients import drive
from benchmarks.service.heartbeats import Heartbeats
from benchmarks.service.servers import plait_serve

SAMPLES, WRITES, WRITE_BYTES = 512, 64, 500_000
P99_S = 0.2


def measure(samples: int = SAMPLES, writes: int = WRITES) -> Measured:
    """The bar over the 99th percentile of a heartbeat."""
    with plait_serve("tiny") as served, Heartbeats(served) as beats:
        told = {"samples": samples, "writes": writes, "write_bytes": WRITE_BYTES}
        found = drive(served, "flood.py", **told)
    whole = found["samples"] == samples and found["writes"] == writes and not beats.failed
    p99 = beats.p99_s()
    return Measured(
        value=P99_S / p99,
        ok=whole and p99 <= P99_S,
        detail={
            "heartbeat_p99_s": p99,
            "heartbeat_max_s": max(beats.seconds),
            "heartbeats": len(beats.seconds),
            "failed_heartbeats": beats.failed[:5],
            **found,
        },
    )
