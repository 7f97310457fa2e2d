"""D1: every probe of the SDK, on the three versions that clients use, against SmolLM2."""

from benchmarks.figure import Measured
from benchmarks.peers.environment import TINKER
from benchmarks.service.clients import drive
from benchmarks.service.servers import plait_serve


def measure() -> Measured:
    """The share of probes that are ok."""
    with plait_serve() as served:
        found = {sdk: drive(served, "probes.py", sdk=sdk) for sdk in TINKER}
    bad = {
        f"{sdk} {name}": said
        for sdk, probes in found.items()
        for name, said in probes.items()
        if said != "ok"
    }
    total = sum(map(len, found.values()))
    return Measured(
        value=(total - len(bad)) / total,
        ok=not bad,
        detail={"probes": {sdk: len(probes) for sdk, probes in found.items()}, "not_ok": bad},
    )
