"""Redaction: no secret reaches a log, whoever writes it and however it is handed on.

Works on every record of the process as it is made (message and traceback), so no handler, format or
library can show more. What counts as a secret: keys, tokens, what follows ``Bearer``, passwords in
URLs.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SECRETS = (
    (re.compile(r"\btml-[A-Za-z0-9_-]{4,}"), "tml-…"),
    (re.compile(r"\beyJ[A-Za-z0-9_.-]{8,}"), "eyJ…"),
    (re.compile(r"\b(sk|hf|ghp)[-_][A-Za-z0-9_-]{8,}"), r"\1-…"),
    (re.compile(r"(?i)\b(bearer\s+)[^\s'\",;)]+"), r"\1…"),
    (re.compile(r"(://[^\s/:@]*:)[^\s/@]+@"), r"\1…@"),
)
_FORMATTER = logging.Formatter()


def redacted(text: str) -> str:
    """The text without its secrets."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def install() -> Any:
    """From now on; the record factory that was there before."""
    before = logging.getLogRecordFactory()

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        try:
            record.msg, record.args = redacted(record.getMessage()), None
        except Exception as error:  # a message that does not fit its arguments is logged as such
            record.msg, record.args = (
                f"a log message cannot be written: {type(error).__name__}",
                None,
            )
        if record.exc_info:
            record.exc_text = redacted(_FORMATTER.formatException(record.exc_info))
        return record

    logging.setLogRecordFactory(make)
    return before


@contextmanager
def installed() -> Iterator[None]:
    """For a while."""
    before = install()
    try:
        yield
    finally:
        logging.setLogRecordFactory(before)
