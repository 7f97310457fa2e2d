"""The real SDKs over a real house: every probe, as they are and with other flags."""

import pytest
from sdk_support import ENVIRONMENTS, NEWEST, PROBES, Run
from serving import Served

from plait.service.tinker_api import clients

pytestmark = pytest.mark.slow
OTHERWISE = {
    NEWEST: {"sample_use_retrieve_futures": True, "proto_compress_fwdbwd": True},
    "0.24.1": {"proto_write_fwdbwd": False, "fwd_via_fwdbwd": False},
}
"""Polls for whole samplers and packed gradients; the JSON of an older client."""


def failed(run_sdk: Run, served: Served, sdk: str) -> dict[str, str]:
    told = {"url": served.url, "key": served.new_key_now("probes"), "model": served.base_model}
    found = run_sdk(sdk, PROBES, **told)
    assert len(found) > 40
    return {name: said for name, said in found.items() if said != "ok"}


@pytest.mark.parametrize("sdk", ENVIRONMENTS)
def test_every_probe_is_ok(sdk: str, run_sdk: Run, served: Served) -> None:
    assert failed(run_sdk, served, sdk) == {}


@pytest.mark.parametrize("sdk", OTHERWISE)
def test_every_probe_is_ok_with_other_flags(
    sdk: str, run_sdk: Run, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in OTHERWISE[sdk].items():
        monkeypatch.setitem(clients.FLAGS, name, value)
    assert failed(run_sdk, served, sdk) == {}
