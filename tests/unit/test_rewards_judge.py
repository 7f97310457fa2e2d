"""plait.rewards.judge: the real ``openai`` client against a small server on this machine."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from plait.core.errors import ConfigError
from plait.rewards.judge import Judge, read_verdict

pytest.importorskip("openai")


class Server(ThreadingHTTPServer):
    """Answers with the last word that it was asked about; counts, and remembers what it saw."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[dict[str, Any]] = []
        self.running = 0
        self.most_running = 0
        self.lock = threading.Lock()
        self.released = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][-1]["content"]
        with self.server.lock:
            self.server.seen.append(body)
            self.server.running += 1
            self.server.most_running = max(self.server.most_running, self.server.running)
        if "hang" in text:
            self.server.released.wait(20)
        time.sleep(0.05)
        with self.server.lock:
            self.server.running -= 1
        status = 500 if "broken" in text else 200
        reply = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": text.split()[-1]},
                }
            ],
        }
        if text.endswith("odd"):
            reply["choices"] = [{"index": 0, "message": None}]
        data = json.dumps(reply).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client has given up

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


def judge(server: Server, deadline_s: float = 20.0, **keys: Any) -> Judge:
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    given = {"prompt": "{prompt} {level} {completion}", **keys}
    return Judge(base_url=url, model="m", deadline_s=deadline_s, **given)


async def test_scores_and_errors_of_one_batch(server: Server) -> None:
    said = ["0.75", "words", "7", "broken 1", "1"]
    async with judge(server, system="be strict") as one:
        outcomes = await one.score(["p"] * 5, said, {"level": list("abcde")})
    assert [o.value for o in outcomes] == [0.75, None, None, None, 1.0]
    assert "no number" in str(outcomes[1].error)
    assert "from 0 to 1" in str(outcomes[2].error)
    assert "failed" in str(outcomes[3].error)
    assert len(server.seen) == 5, "a refused request must not be retried"
    sent = {m["content"] for body in server.seen for m in body["messages"]}
    assert {"be strict", "p a 0.75"} <= sent


async def test_a_column_that_no_request_can_hold_is_escaped(server: Server) -> None:
    async with judge(server) as one:
        (outcome,) = await one.score(["p"], ["1"], {"level": ["\ud800"]})
    assert outcome.value == 1.0
    assert server.seen[0]["messages"][-1]["content"] == "p \\ud800 1"


async def test_a_silent_judge_is_an_error_in_time(server: Server) -> None:
    async with judge(server, deadline_s=0.5) as one:
        t0 = time.monotonic()
        (outcome,) = await one.score(["p"], ["hang"], {"level": ["a"]})
    assert time.monotonic() - t0 < 10
    assert outcome.value is None
    assert "did not answer within 0.5 s" in str(outcome.error)


async def test_concurrency_is_bounded(server: Server) -> None:
    async with judge(server, concurrency=2) as one:
        outcomes = await one.score(["p"] * 8, ["1"] * 8, {"level": ["a"] * 8})
    assert [o.value for o in outcomes] == [1.0] * 8
    assert server.most_running == 2


async def test_no_server_at_all() -> None:
    async with Judge(base_url="http://127.0.0.1:1/v1", model="m") as one:
        (outcome,) = await one.score(["p"], ["c"], {"answer": ["a"]})
    assert outcome.value is None
    assert "judge at http://127.0.0.1:1/v1 failed" in str(outcome.error)


async def test_a_missing_column_is_named(server: Server) -> None:
    async with judge(server) as one:
        (outcome,) = await one.score(["p"], ["c"], {})
    assert "{level}" in str(outcome.error)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"promt": "x"}, "no key promt: did you mean prompt"),
        ({"prompt": "rate it"}, "must contain {completion}"),
        ({"api_key_env": "PLAIT_TEST_NO_SUCH_KEY"}, "PLAIT_TEST_NO_SUCH_KEY is not set"),
        ({"concurrency": 0}, "concurrency"),
    ],
)
def test_wrong_keys(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Judge(base_url="http://127.0.0.1:1/v1", model="m", **keys)
    with pytest.raises(ConfigError, match="needs the key model"):
        Judge(base_url="http://127.0.0.1:1/v1")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1.0), ("Score: .5", 0.5), ("I give 3 of 4 points: 0.75.", 0.75), ("**0.25**", 0.25)],
)
def test_verdicts(text: str, value: float) -> None:
    assert read_verdict(text).value == value


@pytest.mark.parametrize("text", ["", "good", "-0.5", "1.5", "9/10", "v1"])
def test_no_verdicts(text: str) -> None:
    assert read_verdict(text).error is not None


async def test_a_column_that_cannot_be_written_is_its_samples_error(server: Server) -> None:
    class Mute:
        def __str__(self) -> str:
            raise KeyError("no words")

    async with judge(server) as one:
        bad, good = await one.score(["p"] * 2, ["1"] * 2, {"level": [Mute(), "a"]})
    assert bad.value is None
    assert str(bad.error).endswith("failed: KeyError: 'no words'")
    assert good.value == 1.0


async def test_a_server_that_answers_anything_is_an_error(server: Server) -> None:
    async with judge(server) as one:
        (outcome,) = await one.score(["p"], ["odd"], {"level": ["a"]})
    assert outcome.value is None
    assert "asking the judge at http://127.0.0.1" in str(outcome.error)
