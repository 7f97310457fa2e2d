"""Arguments: a mistake in a call is one line that says what to give; the rest comes out plain."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plait.core.errors import RequestError
from plait.core.operations import AdamParams, Datum, SamplingParams
from plait.core.runs import LoraSpec
from plait.runtime import arguments

PARAMS = {"max_tokens": 3}
DATUM = Datum(input_tokens=(1, 2), target_tokens=(2, 3), mask=(True, True))


def test_what_is_right_comes_out_plain() -> None:
    assert arguments.run_name("a-1.x") == "a-1.x"
    assert arguments.token_ids("the prompt", np.array([1, 2])) == (1, 2)
    given = SamplingParams(
        max_tokens=np.int64(3),  # type: ignore[arg-type]
        temperature=1,
        stop=["ab"],  # type: ignore[arg-type]
        stop_tokens=[7],  # type: ignore[arg-type]
    )
    params = arguments.sampling(given)
    assert params == SamplingParams(max_tokens=3, stop=("ab",), stop_tokens=(7,))
    assert type(params.max_tokens) is int
    assert arguments.adam(AdamParams(learning_rate=1)) == AdamParams(learning_rate=1.0)
    assert arguments.lora(LoraSpec(rank=4, alpha=8)) == LoraSpec(rank=4, alpha=8.0)
    assert arguments.batch([DATUM]) == (DATUM,)
    assert arguments.batch(()) == ()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: arguments.run_name("../../y"), r"run name '../../y': use up to 100 letters"),
        (lambda: arguments.run_name(""), "run name '': use"),
        (lambda: arguments.run_name(".."), "run name"),
        (lambda: arguments.run_name("a\n"), "run name"),
        (lambda: arguments.run_name(None), "run name None"),
        (lambda: arguments.token_ids("the prompt", "abc"), "prompt 'abc' is text: give its token"),
        (lambda: arguments.token_ids("the prompt", (1.5,)), r"prompt \(1.5,\) is no list of token"),
        (lambda: arguments.token_ids("the prompt", 7), "the prompt 7 is no list"),
        (lambda: arguments.whole_number("n", 1.5), "n is 1.5: give a whole number"),
        (lambda: arguments.sampling({"max_tokens": 1}), r"give plait.SamplingParams\(…\)"),
        (lambda: sampling(stop="ab"), r"stop 'ab' is one string: .* \('ab',\)"),
        (lambda: sampling(stop=(1,)), r"stop is \(1,\): give a tuple of strings"),
        (lambda: sampling(stop=None), "stop is None: give a tuple of strings"),
        (lambda: sampling(stop_tokens="ab"), "stop_tokens 'ab' is text"),
        (lambda: sampling(max_tokens=2.5), "max_tokens is 2.5: give a whole number"),
        (lambda: sampling(temperature="hot"), "temperature is 'hot': give a number"),
        (lambda: sampling(seed="x"), "seed is 'x': give a whole number"),
        (lambda: arguments.adam(1e-3), "0.001 is no AdamParams"),
        (
            lambda: arguments.adam(AdamParams(learning_rate="1e-3")),  # type: ignore[arg-type]
            "learning_rate is '1e-3': give a number",
        ),
        (lambda: arguments.lora(LoraSpec(seed=2**64)), "the LoRA seed is 18446744073709551616"),
        (lambda: arguments.lora(LoraSpec(seed=10**5000)), "the LoRA seed is a int: give one of"),
        (lambda: arguments.lora(LoraSpec(rank=0)), "the LoRA rank is 0: choose 1 to 64"),
        (lambda: arguments.lora(LoraSpec(rank=65)), "the LoRA rank is 65: choose 1 to 64"),
        (lambda: arguments.lora(LoraSpec(alpha=float("nan"))), "LoRA alpha is nan: choose"),
        (
            lambda: arguments.lora(LoraSpec(targets=())),
            "LoRA targets are empty: choose from q_proj",
        ),
        (lambda: arguments.lora(LoraSpec(targets=("q_prj",))), "LoRA targets hold q_prj: choose"),
        (
            lambda: arguments.lora(LoraSpec(targets=("q_proj",)), ("qkv_proj", "o_proj")),
            "LoRA targets hold q_proj: choose from qkv_proj, o_proj",
        ),
        (lambda: arguments.lora(LoraSpec(targets=("embed_tokens",))), "down_proj, lm_head"),
        (lambda: arguments.lora(LoraSpec(targets="q_proj")), "give a tuple of layers"),  # type: ignore[arg-type]
        (lambda: arguments.batch(DATUM), r"the data are Datum\(.*: give a list of Datum"),
        (lambda: arguments.batch("ab"), "the data are 'ab': give a list of Datum"),
        (
            lambda: arguments.batch([datum(input_tokens=7)]),
            "datum 0: input_tokens is 7: give a list",
        ),
        (lambda: arguments.batch([datum(mask=(x for x in ()))]), "datum 0: mask is <generator"),
        (lambda: arguments.batch([datum(inputs=[1])]), r"datum 0: inputs are \[1\]: give a dict"),
        (lambda: arguments.batch([datum(inputs={"weights": 1.0})]), "datum 0: weights is 1.0"),
    ],
)
def test_a_mistake_is_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(RequestError, match=message) as found:
        call()
    assert "\n" not in str(found.value)


def sampling(**over: Any) -> SamplingParams:
    return arguments.sampling(SamplingParams(**{**PARAMS, **over}))


def datum(**over: Any) -> Datum:
    return Datum(**{"input_tokens": (1,), "target_tokens": (2,), "mask": (True,), **over})
