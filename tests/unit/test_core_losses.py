import math

import pytest

from plait.core.errors import RequestError
from plait.core.losses import LOSSES, choose


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match=", ".join(LOSSES)):
        choose("pop", {})
    with pytest.raises(RequestError, match="clip_low_threshold, clip_high_threshold"):
        choose("ppo", {"clip": 0.2})
    with pytest.raises(RequestError, match="known: none"):
        choose("cross_entropy", {"beta": 0.2})


@pytest.mark.parametrize(
    ("name", "config", "why"),
    [
        ("ppo", {"kl_coef": math.nan}, "finite"),
        ("ppo", {"kl_coef": -0.1}, "0 or more"),
        ("ppo", {"kl_by_ratio": 0.5}, "0 or 1"),
        ("dro", {"beta": -0.1}, "0 or more"),
        ("dro", {"beta": "much"}, "'much': give a finite number"),
        ("gspo", {"clip_low_threshold": -1.0}, "0 or more"),
        ("cispo", {"clip_high_threshold": math.inf}, "finite"),
        ("ppo", {"clip_low_threshold": 1.3}, "1.3 is above clip_high_threshold 1.2"),
    ],
)
def test_options_out_of_range_are_refused(name: str, config: dict, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        choose(name, config)


def test_an_option_without_a_default_must_be_given() -> None:
    with pytest.raises(RequestError, match="dro needs the option 'beta'"):
        choose("dro", {})
    assert choose("dro", {"beta": 0}).options["beta"] == 0


def test_defaults_fill_up_what_is_not_given() -> None:
    assert choose("cispo", {"clip_high_threshold": 1.5}).options == {
        "kl_coef": 0.0,
        "kl_by_ratio": 0.0,
        "clip_low_threshold": 0.8,
        "clip_high_threshold": 1.5,
    }


def test_the_reference_is_needed_only_with_a_coefficient() -> None:
    assert choose("ppo", {"kl_coef": 0.0}).needed == ("logprobs", "advantages")
    assert choose("ppo", {"kl_coef": 0.1}).needed == ("logprobs", "advantages", "ref_logprobs")
