"""Server: requests to ``plait serve``, and its refusals as errors of one line.

What can be asked twice without harm (reading, deleting, and what carries an idempotency key) is
asked again when the connection broke or the server said how long to wait; ``TRIES`` times in all.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from plait.cli.client.profile import Profile
from plait.core.errors import RemoteError

TRIES = 4
PATIENCE_S = 10.0
"""Of one wait that the server asks for: a person who is to wait longer is told so instead."""
BACKOFF_S = 0.5
TIMEOUT = httpx.Timeout(60.0, connect=5.0)
BUSY = frozenset({429, 503})

Json = dict[str, Any]


class Server:
    """One connection pool to a server; use as ``with``."""

    def __init__(self, profile: Profile, *, transport: httpx.BaseTransport | None = None) -> None:
        self._url = profile.url
        try:
            self._http = httpx.Client(
                base_url=profile.url,
                headers={"X-API-Key": profile.key},
                timeout=TIMEOUT,
                transport=transport,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise RemoteError(
                f"{profile.url!r} is no address of a server: it looks like http://HOST:PORT",
                http_status=400,
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def get(self, path: str, /, **params: str | int | None) -> Json:
        """A JSON object; parameters that are None are left out."""
        return self._json(self._send("GET", path, params=_given(params)))

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, idempotency: str = ""
    ) -> Json:
        """Ask for a change. ``idempotency``: a key under which it is made once."""
        headers = {"Idempotency-Key": idempotency} if idempotency else {}
        done = self._send("POST", path, json=body, headers=headers, again=bool(idempotency))
        return self._json(done)

    def patch(self, path: str, body: Mapping[str, Any]) -> Json:
        """Set these fields: asked twice, the same."""
        return self._json(self._send("PATCH", path, json=body))

    def delete(self, path: str, /, **params: str | int | None) -> None:
        """Delete."""
        self._send("DELETE", path, params=_given(params))

    @contextmanager
    def stream(
        self, path: str, /, *, headers: Mapping[str, str] | None = None, **params: str | None
    ) -> Iterator[httpx.Response]:
        """The body as it comes, however long it takes to; RemoteError where it breaks off."""
        timeout = httpx.Timeout(None, connect=TIMEOUT.connect)
        try:
            with self._http.stream(
                "GET", path, headers=headers, params=_given(params), timeout=timeout
            ) as answer:
                if answer.is_error:
                    answer.read()
                    raise _refusal(answer)
                yield answer
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise self._unreachable(error) from error

    def _send(self, method: str, path: str, *, again: bool = True, **what: Any) -> httpx.Response:
        for left in reversed(range(TRIES)):
            wait_s = BACKOFF_S
            try:
                answer = self._http.request(method, path, **what)
            except httpx.ConnectError as error:
                raise self._unreachable(error) from error
            except httpx.HTTPError as error:
                if not (again and left):
                    raise self._unreachable(error) from error
            else:
                if not answer.is_error:
                    return answer
                wait_s = _retry_after(answer)
                if answer.status_code not in BUSY or wait_s > PATIENCE_S or not (again and left):
                    raise _refusal(answer)
            time.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    def _json(self, answer: httpx.Response) -> Json:
        if not answer.content:
            return {}
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise RemoteError(f"{self._url} does not answer as plait serve does: check the address")
        return found

    def _unreachable(self, error: Exception) -> RemoteError:
        said = str(error) or type(error).__name__
        return RemoteError(f"cannot reach {self._url} ({said}): is plait serve running there?")


def segment(text: str) -> str:
    """An id as one segment of a path."""
    return quote(text, safe=":")


def _given(params: Mapping[str, str | int | None]) -> dict[str, str | int]:
    return {name: value for name, value in params.items() if value is not None}


def _retry_after(answer: httpx.Response) -> float:
    try:
        return max(0.0, float(answer.headers.get("Retry-After", BACKOFF_S)))
    except ValueError:
        return BACKOFF_S


def _refusal(answer: httpx.Response) -> RemoteError:
    status = answer.status_code
    message = _message(answer)
    if status == 401:
        message += ": use plait login URL"
    elif status in BUSY and "Retry-After" in answer.headers:
        message += f": ask again in {_retry_after(answer):.0f} s"
    return RemoteError(message, http_status=status)


def _message(answer: httpx.Response) -> str:
    try:
        found = answer.json()
        said = found["error"]["message"]
    except (ValueError, KeyError, TypeError):
        said = None
    if not isinstance(said, str) or not said:
        said = f"{answer.request.url.path} answered {answer.status_code} {answer.reason_phrase}"
    return " ".join(said.split())
