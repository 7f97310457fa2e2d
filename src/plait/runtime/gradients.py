"""Gradients: those of one run that have been asked for and have not ended.

What is asked for behind a gradient that fails is not done: an optimizer step on the rest of an
update would be another step than was asked for.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from plait.core.operations import Result

GRADIENT_FAILED = "not done: the gradient before it failed; ask for both again"


class Gradient:
    """One ``forward_backward`` under way."""

    def __init__(self) -> None:
        self.queued: asyncio.Future[Result] | None = None
        self.refused = False

    @property
    def failed(self) -> bool:
        """True as soon as it is known that nothing is added."""
        q = self.queued
        return self.refused or (
            q is not None and q.done() and (q.cancelled() or q.exception() is not None)
        )


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
        except BaseException:
            gradient.refused = gradient.queued is None  # else its future says what became of it
            raise
        finally:
            self._open.remove(gradient)
