"""Text: what may be written to any file and terminal."""


def writable(text: str) -> str:
    """The text with what UTF-8 cannot hold (lone surrogates) escaped, as JSON escapes it."""
    return text.encode(errors="backslashreplace").decode()
