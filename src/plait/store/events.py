"""Events: what happened, for whoever asks later why. Append-only."""

from plait.core.ids import RunId
from plait.store.database import Database
from plait.store.rows import EventRow, Json
from plait.store.schema import events

PAGE = 1000
"""Most events in one answer: a reader that wants more asks again from the last id."""


class Events:
    """Repository of events, of runs (``run_id``) or of the launch (``None``)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, run_id: RunId | None, kind: str, detail: Json, *, at: float) -> None:
        """Append one event."""
        with self._database.write() as connection:
            connection.execute(
                events.insert().values(run_id=run_id, at=at, kind=kind, detail=detail)
            )

    def list(
        self, *, run_id: RunId | None = None, after_id: int = 0, limit: int = PAGE
    ) -> list[EventRow]:
        """Events after an id, of one run or (``None``) of all, oldest first."""
        query = events.select().where(events.c.id > after_id).order_by(events.c.id).limit(limit)
        if run_id is not None:
            query = query.where(events.c.run_id == run_id)
        with self._database.read() as connection:
            return [EventRow(**found._mapping) for found in connection.execute(query)]
