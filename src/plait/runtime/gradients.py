"""Gradients: those of one run that have been asked for and have not ended.

What is asked for behind a gradient that fails is not done: an optimizer step on the rest of an
update would be another step than was asked for.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from plait.core.errors import NotDone, PlaitError
from plait.core.operations import Result

GRADIENT_FAILED = "not done: the gradient before it failed"


def not_done(which: str, http_status: int) -> NotDone:
    """The error of what stood behind a gradient that failed with that status."""
    then = "ask for both again" if http_status >= 500 else "mend that and ask for both again"
    return NotDone(f"{GRADIENT_FAILED} ({which}); {then}", http_status=http_status)


class Gradient:
    """One ``forward_backward`` under way."""

    def __init__(self) -> None:
        self.queued: asyncio.Future[Result] | None = None
        self.refused: BaseException | None = None

    @property
    def failed(self) -> bool:
        """True as soon as it is known that nothing is added."""
        return self.error is not None

    @property
    def error(self) -> BaseException | None:
        """Why nothing is added, as soon as that is known."""
        q = self.queued
        if self.refused is not None or q is None or not q.done():
            return self.refused
        return asyncio.CancelledError() if q.cancelled() else q.exception()


def spoilt(behind: Sequence[Gradient]) -> NotDone | None:
    """The error of what stands ``behind`` these, if one of them has failed."""
    for gradient in behind:
        match gradient.error:
            case None:
                continue
            case NotDone() as error:  # and what was before that one is named in it
                return error
            case PlaitError() as error:
                return not_done(str(error), error.http_status)
            case asyncio.CancelledError():
                return not_done("it was given up", 409)
            case error:
                return not_done(f"{type(error).__name__}: {error}", 500)
    return None


class Gradients:
    """One run's gradients under way, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._open: list[Gradient] = []

    def before(self) -> tuple[Gradient, ...]:
        """Those that whoever asks now will stand behind."""
        return tuple(self._open)

    @contextmanager
    def one(self) -> Iterator[Gradient]:
        """A gradient, under way until the block ends."""
        gradient = Gradient()
        self._open.append(gradient)
        try:
            yield gradient
        except BaseException as error:
            if gradient.queued is None:  # else its future says what became of it
                gradient.refused = error
            raise
        finally:
            self._open.remove(gradient)
