import subprocess
import sys

import pytest

from plait.core.errors import ConfigError
from plait.policies.admission import KvAdmission
from plait.policies.dispatch import FairDispatch, FifoDispatch
from plait.policies.registry import known, make


def test_every_known_policy_can_be_made() -> None:
    assert known() == (
        "marlaas",
        "multi-lora-sync",
        "no-admission",
        "no-multi-lora",
        "plait",
        "sequential",
        "single-collocated",
        "single-disaggregated",
    )
    for name in known():
        sharing = make(name)
        assert sharing.name == ("plait" if name == "marlaas" else name)


def test_the_default_has_one_name_whatever_it_is_called_by() -> None:
    assert make() == make("marlaas") == make("plait")
    assert make("marlaas", max_active=1).name == "plait"
    assert make().admission == KvAdmission()
    assert make().dispatch == FairDispatch()


def test_topologies_are_those_of_the_paper() -> None:
    assert make("single-collocated").topology == "collocated"
    assert make("single-disaggregated").topology == "disaggregated"
    assert make("sequential", topology="collocated").topology == "collocated"


def test_options_reach_the_policies() -> None:
    sharing = make("marlaas", max_active=3, estimate="worst", dispatch="fifo")
    assert sharing.admission == KvAdmission(max_active=3, estimate="worst")
    assert sharing.dispatch == FifoDispatch()
    assert make("no-multi-lora").admission == KvAdmission(max_active=1)
    assert make(sharing.name, **sharing.options) == sharing, "it can be made again"
    assert make("marlaas").options == {}


@pytest.mark.parametrize(
    ("name", "options", "hint"),
    [
        ("plat", {}, "did you mean 'plait'"),
        ("marlas", {}, "did you mean 'marlaas'"),
        ("xyzzy", {}, "choose from"),
        ("marlaas", {"max_activ": 1}, "did you mean 'max_active'"),
        ("marlaas", {"max_active": -1}, "no valid max_active"),
        ("marlaas", {"max_active": True}, "no valid max_active"),
        ("marlaas", {"estimate": "best"}, "no valid estimate"),
        ("single-collocated", {"topology": "disaggregated"}, "it has none"),
    ],
)
def test_mistakes_are_refused_with_a_hint(name: str, options: dict, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        make(name, **options)


def test_policies_and_profiles_import_nothing_heavy() -> None:
    code = (
        "import sys; import plait.policies.registry, plait.profiles.kv, plait.profiles.timing; "
        "bad = {'torch', 'numpy', 'pydantic', 'sqlalchemy', 'asyncio'} & set(sys.modules); "
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
