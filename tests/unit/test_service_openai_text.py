"""Text of samples, whole and as it comes: the pieces are the whole, and no stop string shows."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.operations import Sampled, StopReason
from plait.models.tokenizer import Tokenizer
from plait.service.openai_api.text import Unfolding, cut, text_of

EOS = 256


@pytest.fixture(scope="module")
def tokenizer(byte_model: Path) -> Tokenizer:
    return Tokenizer(byte_model)


def sampled(tokens: tuple[int, ...], reason: StopReason = StopReason.LENGTH) -> Sampled:
    return Sampled(tokens=tokens, logprobs=(0.0,) * len(tokens), stop_reason=reason, version=None)


def test_the_end_token_is_no_text_and_only_at_the_end(tokenizer: Tokenizer) -> None:
    hi = tokenizer.encode("hi")
    whole = sampled((*hi, EOS), StopReason.STOP)
    assert text_of(tokenizer, whole, stops=(), ends={EOS}) == ("hi", "stop")
    own = sampled(hi, StopReason.STOP)
    assert text_of(tokenizer, own, stops=(), ends={hi[-1]}) == ("h", "stop")
    assert text_of(tokenizer, sampled(hi), stops=(), ends={hi[-1]}) == ("hi", "length")


def test_text_ends_before_the_first_stop_string(tokenizer: Tokenizer) -> None:
    assert cut("one two three", ("three", "two")) == "one "
    ended = sampled(tokenizer.encode("one two"), StopReason.STOP)
    assert text_of(tokenizer, ended, stops=("two",), ends=()) == ("one ", "stop")
    assert text_of(tokenizer, sampled(tokenizer.encode("one")), stops=("x",), ends=()) == (
        "one",
        "length",
    )


def test_what_may_become_a_stop_string_waits(tokenizer: Tokenizer) -> None:
    unfolding = Unfolding(tokenizer, ("\n\nUser:",))
    given_out = [unfolding.push(tokenizer.encode(t)) for t in ("ab\n", "\nUs", "ual", "\n\nUser:x")]
    assert given_out == ["ab", "", "\n\nUsual", ""]


def test_an_incomplete_character_waits_for_its_rest(tokenizer: Tokenizer) -> None:
    unfolding = Unfolding(tokenizer, ())
    first, *rest = tokenizer.encode("é!")
    assert unfolding.push([first]) == ""
    assert unfolding.push(rest) == "é!"


def test_the_stop_string_that_is_complete_first_is_the_one() -> None:
    assert cut(" aa", (" aa", "a")) == " "
    assert cut("xaab", ("aab", "ab")) == "x"


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_the_pieces_are_the_whole(tokenizer: Tokenizer, data: st.DataObject) -> None:
    text = data.draw(st.text(alphabet="abc é世\n🙂", max_size=40))
    ids = list(tokenizer.encode(text))
    ids += data.draw(st.lists(st.integers(0, 255), max_size=6))  # bytes that are no text
    stops = tuple(
        data.draw(st.lists(st.text(alphabet="abc é", min_size=1, max_size=4), max_size=2))
    )
    whole, _ = text_of(tokenizer, sampled(tuple(ids)), stops=stops, ends=())
    unfolding, given_out = Unfolding(tokenizer, stops), ""
    while ids:
        n = data.draw(st.integers(1, len(ids)))
        given_out += unfolding.push(ids[:n])
        ids = ids[n:]
        assert whole.startswith(given_out), "what was given out is never taken back"
    assert given_out + unfolding.end(whole) == whole
