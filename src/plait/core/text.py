"""Text: what may be written to any file and terminal."""

from plait.core.errors import PlaitError


def writable(text: str) -> str:
    """The text with what UTF-8 cannot hold (lone surrogates) escaped, as JSON escapes it."""
    return text.encode(errors="backslashreplace").decode()


def is_writable(text: str) -> bool:
    """False if UTF-8 cannot hold it: there is half a surrogate pair in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def told(error: BaseException) -> str:
    """An exception in words that can be written; other people's may fail to say what they are."""
    try:
        text = str(error) if isinstance(error, PlaitError) else f"{type(error).__name__}: {error}"
    except Exception:  # an exception's own __str__
        text = type(error).__name__
    return writable(text)
