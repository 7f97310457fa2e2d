"""A client of the Tinker API over plain HTTP that behaves as the SDK does when a server dies: what
was not answered is sent again under the same number, what was promised is asked for again.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx

AGAIN_S = 0.05
PATIENCE_S = 300.0
BEAT_S = 5.0


class TinkerClient:
    """One session and one model, numbering its requests."""

    def __init__(self, url: str, key: str) -> None:
        self._http = httpx.Client(base_url=url, headers={"X-API-Key": key}, timeout=45.0)
        self.session_id = self.model_id = ""
        self._seq, self._beat_s, self._n_samples = 0, 0.0, 0

    def close(self) -> None:
        self._http.close()

    def open(self, base_model: str, *, rank: int, seed: int) -> None:
        """A session and a model in it."""
        self.session_id = self.post("create_session", tags=[], sdk_version="0")["session_id"]
        promise = self.post(
            "create_model",
            session_id=self.session_id,
            model_seq_id=0,
            base_model=base_model,
            lora_config={"rank": rank, "seed": seed},
        )
        self.model_id = self.result(promise)["model_id"]

    def number(self) -> int:
        """The next request's."""
        self._seq += 1
        return self._seq

    def ask(self, what: str, *, seq: int | None = None, **body: Any) -> dict[str, Any]:
        """A numbered request of the model; its promise."""
        seq = self.number() if seq is None else seq
        return self.post(what, model_id=self.model_id, seq_id=seq, **body)

    def custom_loss(self, loss: dict[str, Any]) -> str:
        """The id of a loss of ones own."""
        asked = {"session_id": self.session_id, "custom_loss_seq_id": 0, **loss}
        loss_id: str = self.result(self.post("create_custom_loss", **asked))["loss_id"]
        return loss_id

    def gradient(self, seed: int, *, seq: int, loss_id: str = "") -> dict[str, Any]:
        """A gradient of data that the seed decides, by a loss of ones own if there is one."""
        asked: dict[str, Any] = {"data": [datum(seed), datum(seed + 1)]}
        asked["loss_fn"] = "custom" if loss_id else "cross_entropy"
        if loss_id:
            asked["loss_fn_config"] = {"loss_id": loss_id}
        return self.ask("forward_backward", seq=seq, forward_backward_input=asked)

    def step(self) -> dict[str, Any]:
        return self.ask("optim_step", adam_params={"learning_rate": 0.01})

    def save(self, name: str) -> str:
        """The path of a checkpoint."""
        path: str = self.result(self.ask("save_weights", path=name))["path"]
        return path

    def sampler(self, number: int) -> str:
        """A sampler of the model as it is."""
        promise = self.ask("save_weights_for_sampler", sampling_session_seq_id=number)
        sampler_id: str = self.result(promise)["sampling_session_id"]
        return sampler_id

    def sample(self, sampler_id: str, seed: int) -> Any:
        """Tokens drawn; asked for again if a restart has lost the request."""
        while True:
            self._n_samples += 1
            promise = self.post(
                "asample",
                sampling_session_id=sampler_id,
                seq_id=self._n_samples,
                num_samples=2,
                prompt={"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7, 8]}]},
                sampling_params={"max_tokens": 6, "seed": seed},
            )
            try:
                return self.result(promise)
            except Lost:
                continue

    def result(self, promise: dict[str, Any]) -> Any:
        """What became of a request; AssertionError if it failed."""
        while True:
            self._heartbeat()
            found = self.post("retrieve_future", request_id=promise["request_id"])
            if found.get("type") == "try_again":
                continue
            assert "error" not in found, found
            return found

    def finish(self) -> None:
        """End the session."""
        body = {"reason": {"type": "success"}}
        self._until(
            lambda: self._http.post(f"/api/v1/sessions/{self.session_id}/finish", json=body)
        )

    def post(self, what: str, **body: Any) -> dict[str, Any]:
        """An answer; what could not be delivered is sent again."""
        answer = self._until(lambda: self._http.post(f"/api/v1/{what}", json=body))
        found: dict[str, Any] = answer.json()
        return found

    def _until(self, ask: Callable[[], httpx.Response]) -> httpx.Response:
        began = time.monotonic()
        while True:
            try:
                answer = ask()
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code == 410:
                raise Lost(answer.text)
            if answer is not None and answer.status_code < 400:
                return answer
            assert answer is None or answer.status_code in (408, 429) or answer.is_server_error, (
                answer.text
            )
            assert time.monotonic() - began < PATIENCE_S, "it did not come back"
            time.sleep(AGAIN_S)

    def _heartbeat(self) -> None:
        if self.session_id and time.monotonic() - self._beat_s > BEAT_S:
            self._beat_s = time.monotonic()
            self.post("session_heartbeat", session_id=self.session_id)


class Lost(Exception):
    """The server does not know the request any more."""


def datum(seed: int, n: int = 8) -> dict[str, Any]:
    """A sequence that the seed decides."""
    tokens = [(seed * 31 + i * 7) % 200 for i in range(n + 1)]
    return {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens[:-1]}]},
        "loss_fn_inputs": {
            "target_tokens": {"data": tokens[1:], "dtype": "int64", "shape": [n]},
            "weights": {"data": [1.0] * n, "dtype": "float32", "shape": [n]},
        },
    }


class Progress:
    """Steps that all clients together have made, for whoever waits for some."""

    def __init__(self) -> None:
        self._n, self._news = 0, threading.Condition()
        self.failed: BaseException | None = None

    def one_more(self) -> None:
        with self._news:
            self._n += 1
            self._news.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._news:
            self.failed = self.failed or error
            self._news.notify_all()

    def until(self, n: int) -> None:
        """Wait for ``n`` steps; raises what a client failed with."""
        with self._news:
            came = self._news.wait_for(lambda: self._n >= n or self.failed, PATIENCE_S)
        if self.failed is not None:
            raise self.failed
        assert came, f"only {self._n} of {n} steps were made"
