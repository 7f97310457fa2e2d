"""Heartbeats: how long a server takes to answer one, asked at a steady rate beside its work."""

import statistics
import threading
import time
from types import TracebackType
from typing import Self

import httpx

from benchmarks.service.servers import Served

RATE = 20.0
"""A second: enough for a 99th percentile within a minute."""
TIMEOUT_S = 10.0
"""As long as the SDK waits for one."""


class Heartbeats:
    """A client that does nothing but live; use as ``with``."""

    def __init__(self, served: Served) -> None:
        self._http = httpx.Client(
            base_url=served.url, headers={"X-API-Key": served.key}, timeout=TIMEOUT_S
        )
        told = {"type": "create_session", "tags": [], "sdk_version": "0.38.0"}
        answer = self._http.post("/api/v1/create_session", json=told)
        answer.raise_for_status()
        self._session = answer.json()["session_id"]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self.seconds: list[float] = []
        self.failed: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._http.close()

    def p99_s(self) -> float:
        """The 99th percentile."""
        return statistics.quantiles(self.seconds, n=100, method="inclusive")[98]

    def _beat(self) -> None:
        told = {"type": "session_heartbeat", "session_id": self._session}
        due = time.perf_counter()
        while not self._stop.is_set():
            start = time.perf_counter()
            try:
                answer = self._http.post("/api/v1/session_heartbeat", json=told)
                if not answer.is_success:
                    self.failed.append(str(answer.status_code))
            except httpx.HTTPError as error:
                self.failed.append(repr(error))
            self.seconds.append(time.perf_counter() - start)
            due = max(due + 1 / RATE, time.perf_counter())
            self._stop.wait(max(0.0, due - time.perf_counter()))
