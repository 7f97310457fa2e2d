"""plait.cli.client: what is asked of a server, what people see of its answers, and how it fails."""

import io
import json
import stat
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from plait.cli import main, remote
from plait.cli.client import (
    account,
    checkpoints,
    download,
    jobs,
    keys,
    login,
    logs,
    server,
    tenants,
)
from plait.cli.client.profile import Profile, load_profile, save_profile
from plait.cli.client.server import Server
from plait.core.errors import ConfigError, RemoteError

PROFILE = Profile(url="http://server", key="tml-secret")
JOB = {
    "job_id": "j-1",
    "run_id": "j-1",
    "name": "sums",
    "model": "tiny",
    "status": "running",
    "reason": "",
    "stage": "rollout",
    "step": 3,
    "steps": 10,
    "reward": 0.25,
    "created_at": "2026-01-01T00:00:00Z",
    "updated_at": "2026-01-01T00:01:00Z",
}
Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], list[httpx.Request]]:
    """Answer the verbs' requests by a function; the requests that came."""

    def answered_by(answer: Answer) -> list[httpx.Request]:
        asked: list[httpx.Request] = []

        def handle(request: httpx.Request) -> httpx.Response:
            asked.append(request)
            return answer(request)

        @contextmanager
        def connected() -> Iterator[Server]:
            with Server(PROFILE, transport=httpx.MockTransport(handle)) as found:
                yield found

        for module in (jobs, logs, checkpoints, download, account, keys, tenants):
            monkeypatch.setattr(module, "connected", connected)
        monkeypatch.setattr(time, "sleep", lambda s: None)
        return asked

    return answered_by


def code(verb: Callable[..., None], *arguments: Any, **options: Any) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        verb(*arguments, **options)
    return end.value.code


def refused(status: int, message: str, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message}}, headers=headers)


def test_jobs_are_a_table_or_json(serving: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked = serving(lambda request: httpx.Response(200, json={"jobs": [JOB], "total": 1}))
    assert code(remote.jobs, status="running", limit=7) == 0
    table = capsys.readouterr().out
    assert all(part in table for part in ("j-1", "sums", "running", "3/10", "0.25"))
    assert code(remote.jobs, format=main.Format.JSON) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == [JOB]
    assert asked[0].url.params["status"] == "running"
    assert asked[0].url.params["limit"] == "7"
    assert asked[0].headers["X-API-Key"] == PROFILE.key


def test_a_submission_is_repeated_under_one_key(serving: Any, tmp_path: Path) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if len(asked) == 1:
            raise httpx.ReadError("connection reset")
        return httpx.Response(201, json={"jobs": [JOB]})

    asked = serving(answer)
    (tmp_path / "job.yaml").write_text("name: sums")
    (tmp_path / "data.jsonl").write_text("{}\n")
    files, data = [tmp_path / "job.yaml"], [tmp_path / "data.jsonl"]
    assert code(remote.submit, files, data=data) == 0
    assert len(asked) == 2
    assert len({r.headers["Idempotency-Key"] for r in asked}) == 1
    body = json.loads(asked[1].content)
    assert body == {"file": "name: sums", "files": {"data.jsonl": "{}\n"}}
    assert code(remote.submit, files) == 0
    assert len({r.headers["Idempotency-Key"] for r in asked}) == 2, "another call, other jobs"


def test_what_is_no_harmless_repeat_is_asked_once(serving: Any) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("connection reset")

    asked = serving(answer)
    assert code(remote.add_key, "laptop") == 1
    assert len(asked) == 1


def test_a_short_wait_is_waited_and_a_long_one_is_told(
    serving: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = iter([refused(429, "too fast", **{"Retry-After": "2"})])
    asked = serving(lambda request: next(waits, None) or httpx.Response(200, json={"keys": []}))
    assert keys.keys_command(as_json=True) == 0
    assert len(asked) == 2
    serving(lambda request: refused(429, "over tokens_per_min", **{"Retry-After": "40"}))
    assert code(remote.jobs) == 2
    assert capsys.readouterr().err == "error: over tokens_per_min: ask again in 40 s\n"


@pytest.mark.parametrize(
    ("answer", "said", "exit_code"),
    [
        (lambda r: refused(404, "no job x"), "error: no job x\n", 2),
        (lambda r: refused(401, "unknown key"), "error: unknown key: use plait login URL\n", 2),
        (lambda r: httpx.Response(500, text="<html>"), "error: /v1/jobs/x answered 500 ", 1),
        (lambda r: httpx.Response(200, text="hello"), "does not answer as plait serve does", 1),
    ],
)
def test_refusals_are_one_line(
    serving: Any, capsys: pytest.CaptureFixture[str], answer: Answer, said: str, exit_code: int
) -> None:
    serving(answer)
    assert code(remote.jobs, "x") == exit_code
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert PROFILE.key not in err


def test_a_server_that_is_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("PLAIT_API_KEY", "tml-x")
    assert code(remote.quota) == 1
    assert "is plait serve running there?" in capsys.readouterr().err
    assert code(remote.logs, "x", follow=False) == 1


def sse(*events: tuple[int, str, dict[str, Any]]) -> httpx.Response:
    text = "".join(f"id: {n}\nevent: {kind}\ndata: {json.dumps(d)}\n\n" for n, kind, d in events)
    return httpx.Response(200, text=": hello\n\n" + text)


def test_a_followed_log_goes_on_where_it_broke_off(
    serving: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = iter(
        [
            sse((1, "log", {"text": "one"}), (2, "log", {"text": "two"})),
            refused(503, "restarting"),
            sse((3, "log", {"text": "three"}), (4, "end", {"status": "failed", "reason": "NaN"})),
        ]
    )
    asked = serving(lambda request: next(parts))
    assert code(remote.logs, "sums", follow=True) == 1, "the job failed"
    assert capsys.readouterr().out.splitlines() == ["one", "two", "three", "failed: NaN"]
    assert [r.headers.get("Last-Event-ID") for r in asked] == [None, "2", "2"]
    assert asked[0].url.params["follow"] == "true"


def test_a_follower_gives_up(serving: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked = serving(lambda request: refused(503, "starting"))
    assert code(remote.logs, "sums", follow=True) == 1
    assert "starting" in capsys.readouterr().err
    assert len(asked) == logs.BROKEN_IN_A_ROW + 1


def test_an_event_that_is_cut_off_is_none() -> None:
    lines = ["id: 7", "event: log", "data: a", "data: b", "", "data: cut"]
    assert list(logs.events(lines)) == [logs.Event(id="7", kind="log", data="a\nb")]


def tar(*members: tuple[str, bytes | None]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data or b""))
    return whole.getvalue()


def test_a_checkpoint_is_unpacked_where_it_is_asked_for(
    serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Debian 12's Python, 3.11.2, has no ``filter`` for it.
    monkeypatch.setattr(tarfile.TarFile, "extract", None)
    whole = tar(("adapter_config.json", b"{}"), ("adapter_model.safetensors", b"1234"))
    asked = serving(lambda request: httpx.Response(200, content=whole))
    path = "tinker://s-1:train:0/sampler_weights/best"
    assert code(remote.download, path, out=tmp_path / "best") == 0
    assert (tmp_path / "best" / "adapter_model.safetensors").read_bytes() == b"1234"
    assert asked[0].url.params["path"] == path
    assert code(remote.download, path, out=tmp_path / "best") == 2, "what is there is not touched"
    assert [p.name for p in tmp_path.iterdir()] == ["best"]


@pytest.mark.parametrize(
    "whole",
    [tar(("ok", b"x"), ("../../evil", b"x")), tar(("link", None)), tar(("a", b"x" * 9999))[:3000]],
)
def test_a_bad_archive_leaves_nothing(serving: Any, tmp_path: Path, whole: bytes) -> None:
    serving(lambda request: httpx.Response(200, content=whole))
    (tmp_path / "in").mkdir()
    assert code(remote.download, "tinker://x/weights/y", out=tmp_path / "in" / "out") == 1
    assert [p.name for p in tmp_path.rglob("*")] == ["in"]


def test_the_files_of_a_job(serving: Any, tmp_path: Path) -> None:
    names = ["metrics.jsonl", "logs/head #1.log"]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/artifacts"):
            return httpx.Response(200, json={"artifacts": [{"path": n} for n in names]})
        return httpx.Response(200, text=request.url.path.split("/artifacts/")[1])

    serving(answer)
    assert code(remote.download, "sums", out=tmp_path / "out") == 0
    assert [(tmp_path / "out" / n).read_text() for n in names] == names
    names[:] = ["../evil"]
    assert code(remote.download, "sums", out=tmp_path / "other") == 1
    assert not (tmp_path / "other").exists()


def test_an_operator_asks_for_a_tenants_usage(serving: Any) -> None:
    total = {"prompt_tokens": 0}
    asked = serving(lambda request: httpx.Response(200, json={"usage": [], "total": total}))
    assert code(remote.usage, by="day", tenant="vision") == 0
    assert dict(asked[0].url.params) == {"by": "day", "tenant_id": "vision"}


def test_checkpoints_are_pinned_unpinned_and_deleted(
    serving: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = serving(lambda request: httpx.Response(204))
    path = "tinker://s-1:train:0/weights/a b"
    assert code(remote.checkpoints, None, pin=[path], unpin=["x"], delete=["y"], limit=1) == 0
    assert capsys.readouterr().out.splitlines() == [f"pinned {path}", "unpinned x", "deleted y"]
    assert [(r.method, r.url.path, r.url.params["path"]) for r in asked] == [
        ("POST", "/v1/checkpoints/pin", path),
        ("DELETE", "/v1/checkpoints/pin", "x"),
        ("DELETE", "/v1/checkpoints", "y"),
    ]


def test_a_key_is_kept_for_its_owner_and_its_server_alone(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    with pytest.raises(ConfigError, match="plait login URL"):
        load_profile(environ)
    file = save_profile(PROFILE, environ)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert load_profile(environ) == PROFILE
    assert PROFILE.key not in repr(PROFILE)
    with pytest.raises(ConfigError, match="PLAIT_API_KEY"):
        load_profile({**environ, "PLAIT_URL": "http://another"})
    own = load_profile({**environ, "PLAIT_URL": "http://another/", "PLAIT_API_KEY": "tml-2"})
    assert own == Profile(url="http://another", key="tml-2")
    file.write_text("[]")
    with pytest.raises(ConfigError, match="plait login URL again"):
        load_profile(environ)


def test_a_key_that_is_refused_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    good = {"tenant_id": "t-1", "name": "us", "key_id": "k-1", "admin": False}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.headers["X-API-Key"] != "tml-good":
            return refused(401, "unknown key")
        return httpx.Response(200, json=good)

    def opened(profile: Profile) -> Server:
        return Server(profile, transport=httpx.MockTransport(answer))

    monkeypatch.setattr(login, "Server", opened)
    monkeypatch.setattr("sys.stdin", io.StringIO("tml-bad\n"))
    assert code(remote.login, "http://server/") == 2
    assert not list(tmp_path.rglob("*.json"))
    monkeypatch.setattr("sys.stdin", io.StringIO("tml-good\n"))
    assert code(remote.login, "http://server/", format=main.Format.JSON) == 0
    out = capsys.readouterr().out
    assert json.loads(out)["name"] == "us"
    assert "tml-good" not in out
    assert load_profile() == Profile(url="http://server", key="tml-good")


@pytest.mark.parametrize("name", ["keys", "tenants", "jobs", "checkpoints"])
def test_a_list_that_is_cut_says_so(
    serving: Any, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    answer = {name: [{}, {}], "total": 2}
    asked = serving(lambda request: httpx.Response(200, json=answer))
    assert code(main.app, [name]) == 0
    assert " of " not in capsys.readouterr().out
    answer["total"] = 1234
    assert code(main.app, [name]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 1,234"
    assert "limit" in asked[0].url.params
    assert code(main.app, [name, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == 1234


def test_keys_of_another_tenant(serving: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked = serving(lambda request: httpx.Response(200, json={"keys": [], "total": 0}))
    assert code(main.app, ["keys", "--tenant", "vision"]) == 0
    assert dict(asked[0].url.params) == {"tenant_id": "vision", "limit": "1000"}
    assert code(main.app, ["keys", "--tenant", "vision", "add", "ci"]) == 2
    assert "give it behind add" in capsys.readouterr().err
    assert len(asked) == 1, "no key was made of one's own tenant"


def test_limits_of_a_tenant(serving: Any) -> None:
    asked = serving(lambda request: httpx.Response(200, json={"tenant_id": "t-1", "name": "us"}))
    assert code(remote.set_tenant, "t-1", limit=["runs=4", "storage_bytes=none"]) == 0
    assert asked[0].method == "PATCH"
    assert json.loads(asked[0].content) == {"limits": {"runs": 4, "storage_bytes": None}}
    assert code(remote.set_tenant, "t-1") == 2, "nothing was to be changed"
    for wrong in ("runs", "runs=", "runs=-1", "=3", "runs=nan", "runs=inf"):
        with pytest.raises(ConfigError, match="NAME=NUMBER"):
            tenants.parse_limits([wrong])


def test_an_address_that_is_none() -> None:
    with pytest.raises(RemoteError, match="http://HOST:PORT"):
        server.Server(Profile(url="http://server:port", key="k"))
