"""Redaction: secrets never reach a handler, in a message, its arguments or a traceback."""

import logging

import pytest

from plait.service import redaction

KEY = "tml-AbC_def-0123456789abcdefghijklmnopqrst"


@pytest.mark.parametrize(
    "text",
    [
        f"key {KEY}",
        f"Authorization: Bearer {KEY}",
        "authorization: bearer something-else",
        "postgresql://plait:hunter2@db/plait",
        "sk-abcdefghijkl",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig",
    ],
)
def test_secrets_are_taken_out(text: str) -> None:
    shown = redaction.redacted(text)
    for secret in (KEY, "something-else", "hunter2", "abcdefghijkl", "eyJhbGciOiJIUzI1NiJ9.eyJ"):
        assert secret not in shown
    assert "…" in shown


def test_words_stay() -> None:
    text = "job tml- of http://host:80/a?b=c, bearer"
    assert redaction.redacted(text) == text


def test_no_handler_sees_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    log = logging.getLogger("anybody")
    with redaction.installed():
        log.warning("in the text %s", KEY)
        log.warning("as an argument: %s %d", {"key": KEY}, 3)
        log.warning(f"{KEY} %s")
        log.warning("%d does not fit", KEY)
        try:
            raise ValueError(KEY)
        except ValueError:
            log.exception("in a traceback")
    assert KEY not in caplog.text
    assert len(caplog.records) == 5
    assert "ValueError: tml-…" in caplog.text
    assert "as an argument: {'key': 'tml-…'} 3" in caplog.text
