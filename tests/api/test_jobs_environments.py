"""Environments of a submission's own over HTTP: they run apart, and harm nobody but their job."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from edge_support import ROWS, edge, job, until
from jobs_support import FILES, ended, file_of, running, submit

from plait.cluster import sandbox
from plait.core.ids import TenantId
from plait.obs.jsonl import read_jsonl

MINE = '''
import asyncio, os, pathlib
from plait.envs.protocol import Turn


class Env:
    """Two turns; what happens in the second depends on the problem."""

    stop = ()

    def __init__(self, source, index):
        self.source, self.index, self.turns = source, index, 0

    async def start(self):
        return self.source.tokenizer.encode(f"{self.source.word} {self.index}?")

    async def step(self, tokens):
        self.turns += 1
        if self.turns == 1:
            return Turn(tokens=self.source.tokenizer.encode("go on"), done=False)
        what = self.source.what.get(str(self.index))
        if what == "waits":
            await self.source.other.wait()
        if what == "releases":
            self.source.other.set()
        if what == "dies":
            os._exit(5)
        if what == "rubbish":
            return Turn(tokens=(10**6,), reward=1.0)
        if what == "looks":
            state = pathlib.Path(self.source.state)
            print("seen:", state.exists() and sorted(os.listdir(state)))
        said = self.source.tokenizer.decode(tokens)
        return Turn(reward=len(set(said)) / max(len(said), 1), info={"why": f"turn {self.turns}"})

    def columns(self):
        return {"answer": "a"}


class Source:
    name, same_prompt, max_turns = "mine", True, 2

    def __init__(self, config, tokenizer, seed):
        self.tokenizer, self.word = tokenizer, config.pop("word", "say")
        self.what, self.state = config.pop("what", {}), config.pop("state", "/")
        self.other = asyncio.Event()
        if config:
            raise ValueError(f"what is {config}?")

    def make(self, index, split):
        return Env(self, index)

    async def aclose(self):
        pass


def hangs(config, tokenizer, seed):
    import time
    time.sleep(600)
'''
CODE = {**FILES, "mine.py": MINE}
needs_bubblewrap = pytest.mark.skipif(not sandbox.available(), reason="no bubblewrap here")


def mine(name: str, target: str = "mine:Source", **over: Any) -> dict[str, Any]:
    config = {key: over.pop(key) for key in ("what", "word", "state", "colour") if key in over}
    return job(
        name,
        environment={"name": target, **config},
        rewards=over.pop("rewards", []),
        **{"limits": {"max_tokens": 16}, "samples": 4, **over},
    )


async def samples_of(client: httpx.AsyncClient, job_id: str) -> list[dict[str, Any]]:
    answer = await client.get(f"/v1/jobs/{job_id}/artifacts/samples.jsonl")
    return [json.loads(line) for line in answer.text.splitlines()]


@needs_bubblewrap
async def test_a_job_trains_on_an_environment_of_its_own(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model, app={"allow_code": True}) as e:
        alice = await e.tenant("alice")
        what = {"0": "waits", "1": "releases", "2": "looks"}
        spec = mine("own", what=what, state=str(tmp_path), evaluation={"items": 2})
        (made,) = await submit(alice, file_of(byte_model, spec), files=CODE)
        view = await ended(alice, made["job_id"])
        assert (view["status"], view["step"]) == ("done", 3), view["reason"]
        rows = await samples_of(alice, made["job_id"])
        assert [row["error"] for row in rows] == [None] * len(rows)
        train = [row for row in rows if row["split"] == "train"]
        assert {row["n_turns"] for row in train} == {2}
        assert {(row["index"], row["prompt"]) for row in train} == {
            (i, f"say {i}?") for i in range(6)
        }
        assert {row["why"] for row in train} == {"turn 2"}
        log = (await alice.get(f"/v1/jobs/{made['job_id']}/artifacts/environment.log")).text
        assert log == "seen: ['submissions']\n" * 4, (
            "of the state no more than the way to its files"
        )


@needs_bubblewrap
async def test_what_goes_wrong_in_it_harms_its_job_alone(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model, app={"allow_code": True}) as e:
        alice, bob = await e.tenant("alice"), await e.tenant("bob")
        what = {"2": "dies", "4": "rubbish"}
        (bad,) = await submit(alice, file_of(byte_model, mine("bad", what=what)), files=CODE)
        dying = mine("dying", what={str(i): "dies" for i in range(99)}, steps=40)
        (dead,) = await submit(alice, file_of(byte_model, dying), files=CODE)
        (good,) = await submit(bob, file_of(byte_model, job("good", steps=12)))
        assert (await ended(bob, good["job_id"]))["status"] == "done"
        view = await ended(alice, bad["job_id"])
        assert (view["status"], view["step"]) == ("done", 3), view["reason"]
        errors = {
            index: [
                r["error"] for r in await samples_of(alice, bad["job_id"]) if r["index"] == index
            ]
            for index in range(6)
        }
        assert errors[0] == errors[1] == errors[5] == [None] * 4
        assert all("process ended (exit status 5)" in error for error in errors[2])
        assert all("no token of the model" in error for error in errors[4])
        view = await ended(alice, dead["job_id"])
        assert view["status"] == "failed"
        assert "exit status 5" in view["reason"]
        assert view["step"] < 40


@needs_bubblewrap
@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"target": "mine:Sourse"}, "did you mean mine:Source?"),
        ({"colour": 1}, "what is {'colour': 1}?"),
    ],
)
async def test_what_cannot_be_made_ends_its_job(
    tmp_path: Path, byte_model: Path, over: dict[str, Any], says: str
) -> None:
    async with edge(tmp_path, byte_model, app={"allow_code": True}) as e:
        alice = await e.tenant("alice")
        (made,) = await submit(alice, file_of(byte_model, mine("bad", **over)), files=CODE)
        view = await ended(alice, made["job_id"])
        assert (view["status"], view["step"]) == ("failed", 0)
        assert says in view["reason"]


@needs_bubblewrap
async def test_one_that_hangs_as_it_is_made_can_be_cancelled(
    tmp_path: Path, byte_model: Path
) -> None:
    async with edge(tmp_path, byte_model, app={"allow_code": True}) as e:
        alice = await e.tenant("alice")
        spec = mine("stuck", target="mine:hangs")
        (made,) = await submit(alice, file_of(byte_model, spec), files=CODE)
        url = f"/v1/jobs/{made['job_id']}"
        await until(lambda: running(alice, url))
        assert (await alice.post(f"{url}/cancel")).json()["status"] == "cancelled"


@needs_bubblewrap
async def test_paused_resumed_and_taken_up_after_a_restart(
    tmp_path: Path, byte_model: Path
) -> None:
    def rows(directory: Path, job_id: str) -> list[Any]:
        (file,) = directory.glob(f"models/*/jobs/{job_id}/samples.jsonl")
        keys = ("step", "index", "group", "prompt", "completion", "reward")
        return sorted([row[key] for key in keys] for row in read_jsonl(file))

    file = file_of(byte_model, mine("own", steps=12, seed=3))
    app = {"allow_code": True}
    async with edge(tmp_path / "one", byte_model, app=app) as e:
        alice = await e.tenant("alice")
        (made,) = await submit(alice, file, files=CODE)
        url = f"/v1/jobs/{made['job_id']}"

        async def far() -> bool:
            return bool((await alice.get(url)).json()["step"] >= 2)

        await until(far)
        assert (await alice.post(f"{url}/pause")).json()["status"] == "paused"
        assert (await alice.post(f"{url}/resume")).json()["status"] == "running"
    async with edge(tmp_path / "one", byte_model) as e:  # without --allow-code it waits
        alice = e.client((await e.access.issue(TenantId("alice"))).key)

        async def waits() -> bool:
            why = (await alice.get(f"/v1/runs/{made['job_id']}/why")).json()["reason"]
            return "mine:Source is code" in why and "--allow-code" in why

        await until(waits)
    async with edge(tmp_path / "one", byte_model, app=app) as e:
        alice = e.client((await e.access.issue(TenantId("alice"))).key)
        view = await ended(alice, made["job_id"])
        assert (view["status"], view["step"]) == ("done", 12), view["reason"]
    async with edge(tmp_path / "two", byte_model, app=app) as e:
        bob = await e.tenant("bob")
        (whole,) = await submit(bob, file, files=CODE)
        await ended(bob, whole["job_id"])
    assert rows(tmp_path / "one", made["job_id"]) == rows(tmp_path / "two", whole["job_id"])


@pytest.mark.parametrize(
    ("allowed", "boxed", "files", "says"),
    [
        (False, True, FILES, "start the server with --allow-code"),
        (True, False, CODE, "bubblewrap, its sandbox, is not installed here"),
        (True, True, FILES, "environment mine:Source: send mine.py along"),
        (True, True, {"mines.py": MINE, "rows.jsonl": ROWS}, "send mine.py along"),
    ],
)
async def test_what_may_not_run_says_what_to_do(
    tmp_path: Path,
    byte_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    allowed: bool,
    boxed: bool,
    files: dict[str, str],
    says: str,
) -> None:
    monkeypatch.setattr(sandbox, "available", lambda: boxed)
    async with edge(tmp_path, byte_model, app={"allow_code": allowed}) as e:
        sent = {"file": file_of(byte_model, mine("own")), "files": files}
        answer = await e.operator.post("/v1/jobs", json=sent)
        assert answer.status_code == 422
        assert says in answer.json()["error"]["message"]
        if allowed:
            sent["file"] = file_of(byte_model, mine("own", target="plait.envs.tiny:sum_factory"))
            answer = await e.operator.post("/v1/jobs", json=sent)
            assert answer.status_code == 422, "no module but those that came along"
