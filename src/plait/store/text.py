"""Text: strings that every database can hold.

PostgreSQL refuses NUL in text and UTF-8 lacks lone surrogates; both arrive in what clients say, in
the errors that quote them and in the ids that they ask for. They are escaped on the way in, and
stay so: an id that holds them is an unknown one, not an error.
"""

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from plait.core.text import writable


class Text(sa.TypeDecorator[str]):
    """A string column."""

    impl = sa.String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """What is written instead of ``value``."""
        return None if value is None else writable(value).replace("\0", "\\0")
