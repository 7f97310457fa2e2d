"""The installed program as a service: two tenants at once, each through ``plait`` and the Tinker
API, neither of whom sees the other; and the examples of the documents."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import Served
from tinker_client import TinkerClient

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PLAIT = (sys.executable, "-c", "from plait.cli.entry import main; main()")
VERB_S = 120.0
JOB = """
name: {name}
model: tiny
groups: 2
samples: 4
steps: {steps}
limits: {{max_tokens: 8}}
environment: {{name: tiny-sum}}
"""


class Person:
    """Somebody at a shell of their own."""

    def __init__(self, server: Served, home: Path, key: str) -> None:
        home.mkdir()
        self.home, self.key = home, key
        self._env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PLAIT_")},
            "XDG_CONFIG_HOME": str(home),
            "OMP_NUM_THREADS": "1",
        }
        self.plait("login", server.url, said=key + "\n")

    def plait(self, *arguments: str, said: str = "", code: int = 0) -> str:
        """One command; what it printed (its one line of error if it is to fail)."""
        done = subprocess.run(
            [*PLAIT, *arguments],
            input=said,
            capture_output=True,
            text=True,
            timeout=VERB_S,
            cwd=self.home,
            env=self._env,
        )
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        assert self.key not in done.stdout + done.stderr
        if code:
            assert done.stderr.count("\n") == 1
        return done.stderr if code else done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.plait(*arguments, "--format", "json"))

    def submit(self, name: str, steps: int) -> str:
        (self.home / f"{name}.yaml").write_text(JOB.format(name=name, steps=steps))
        (job,) = self.json("submit", f"{name}.yaml")["jobs"]
        return str(job["job_id"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("service") / "state"
    with Served(place, "--model", "tiny", "--cores", "1") as served:
        yield served


@pytest.fixture(scope="module")
def people(
    server: Served, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Person, Person, Person]:
    """An operator and two tenants that it has let in."""
    homes = tmp_path_factory.mktemp("homes")
    operator = Person(server, homes / "operator", server.key)
    tenants = []
    for name in ("ann", "bob"):
        tenant = operator.json("tenants", "add", name, "--limit", "runs=8")["tenant_id"]
        key = operator.json("keys", "add", "laptop", "--tenant", tenant)["key"]
        tenants.append(Person(server, homes / name, key))
    return operator, tenants[0], tenants[1]


def test_two_tenants_work_at_once_and_see_only_their_own(
    server: Served, people: tuple[Person, Person, Person]
) -> None:
    _, ann, bob = people

    def script(person: Person) -> str:
        client = TinkerClient(server.url, person.key)
        client.open("tiny", rank=4, seed=1)
        for step in range(3):
            client.gradient(step, seq=client.number())
            client.result(client.step())
        path = client.save("mine")
        tokens = client.sample(client.sampler(0), seed=3)
        assert tokens["sequences"]
        client.finish()
        client.close()
        return path

    def work(person: Person) -> tuple[str, str]:
        job = person.submit("sums", steps=4)
        path = script(person)
        return job, path

    with ThreadPoolExecutor(2) as pool:
        (job_a, path_a), (job_b, path_b) = pool.map(work, (ann, bob))
    for person, job in ((ann, job_a), (bob, job_b)):
        log = person.plait("logs", "-f", job).splitlines()
        assert [line.split(":")[0] for line in log[:4]] == [f"step {n}" for n in range(1, 5)]
        assert log[-1].startswith("done")
        assert person.json("jobs", "sums")["job_id"] == job, "both may use the same name"
        assert [j["job_id"] for j in person.json("jobs")["jobs"]] == [job]
    assert [c["path"] for c in ann.json("checkpoints")["checkpoints"]] == [path_a]
    for stranger, job, path in ((bob, job_a, path_a), (ann, job_b, path_b)):
        for verb in ("jobs", "logs", "why", "cancel", "download"):
            assert "there is no" in stranger.plait(verb, job, code=2)
        stranger.plait("download", path, code=2)
        stranger.plait("checkpoints", "--delete", path, code=2)
    bob.plait("download", path_b, "--out", "got")
    assert (bob.home / "got" / "adapter_model.safetensors").stat().st_size
    bob.plait("download", job_b, "--out", "job")
    assert any((bob.home / "job").rglob("metrics.jsonl"))
    for person in (ann, bob):
        assert person.json("usage")["total"]["trained_tokens"] > 0
    ann.plait("checkpoints", "--delete", path_a)
    assert ann.json("checkpoints")["checkpoints"] == []


def test_a_job_is_paused_resumed_and_cancelled(people: tuple[Person, Person, Person]) -> None:
    _, ann, _ = people
    job = ann.submit("long", steps=100_000)
    assert ann.plait("pause", job).startswith("long: paused")
    assert "paused" in ann.plait("why", job)
    assert ann.plait("resume", "long").startswith("long: ")
    assert ann.plait("cancel", job).startswith("long: cancelled")
    assert ann.plait("logs", "-f", job).splitlines()[-1].startswith("cancelled")


def test_a_key_ends_and_its_tenant_goes_on(
    server: Served, people: tuple[Person, Person, Person]
) -> None:
    operator, ann, _ = people
    keys = {k["key_id"]: k for k in ann.json("keys")["keys"]}
    (mine,) = [k for k in keys.values() if ann.key.startswith(k["prefix"])]
    rotated = operator.json("keys", "rotate", mine["key_id"], "--grace", "0")
    assert "plait login URL" in ann.plait("jobs", code=2)
    ann.key = rotated["key"]
    ann.plait("login", server.url, said=ann.key + "\n")
    assert ann.json("jobs")["total"] >= 1
    assert "operator" in ann.plait("tenants", code=2)


def test_what_the_service_prints_holds_no_key_but_the_first(
    server: Served, people: tuple[Person, Person, Person]
) -> None:
    log = server.log.read_text()
    assert log.count("tml-") == 1
    assert all(person.key not in log for person in people[1:])


def test_the_examples_of_the_service(
    server: Served, people: tuple[Person, Person, Person], tmp_path: Path
) -> None:
    _, _, bob = people
    (tmp_path / "job.yaml").write_text(JOB.format(name="curl", steps=2))
    env = {
        **os.environ,
        "PLAIT_URL": server.url,
        "PLAIT_API_KEY": bob.key,
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": bob.key,
    }
    curl = subprocess.run(
        ["sh", ROOT / "examples" / "403_curl.sh", tmp_path / "job.yaml"],
        capture_output=True,
        text=True,
        timeout=VERB_S,
        env=env,
    )
    assert curl.returncode == 0, curl.stderr
    assert "event: end" in curl.stdout
    script = [sys.executable, ROOT / "examples" / "402_openai_script.py"]

    def openai(*arguments: str) -> str:
        done = subprocess.run(
            [*script, *arguments], capture_output=True, text=True, timeout=VERB_S, env=env
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "tiny" in openai().split()
    assert re.fullmatch(r"\d\d;\n", openai("tiny", "sum 03+04="))


def test_healthz_needs_no_key(server: Served) -> None:
    assert httpx.get(f"{server.url}/healthz").is_success
