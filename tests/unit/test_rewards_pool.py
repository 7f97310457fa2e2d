"""plait.rewards.pool: whatever a grader does, every sample gets a true outcome."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from plait.core.errors import ConfigError, RewardError
from plait.rewards.outcome import RewardOutcome
from plait.rewards.pool import RewardPool

GRADERS = """
import os, struct, subprocess, sys, time

def length(prompts, completions, **columns):
    print("a grader may print")
    return [float(len(c)) for c in completions]

def named(completions, answer):
    return [float(c == a) for c, a in zip(completions, answer)]

async def later(completions, **columns):
    return [None if c == "skip" else 1 for c in completions]

def raises(completions, **columns):
    raise KeyError("no such thing")

class Mute(Exception):
    def __str__(self):
        raise ValueError("not even that")

def mute(completions, **columns):
    raise Mute

def exits(completions, **columns):
    sys.exit(3)

def crashes(completions, **columns):
    os._exit(7)

def nan(completions, **columns):
    return [float("nan") if c == "bad" else 0.25 for c in completions]

def infinite(completions, **columns):
    return [10**400, float("-inf")]

def short(completions, **columns):
    return [1.0] * (len(completions) - 1)

def word(completions, **columns):
    return "ok"

def words(completions, **columns):
    return ["1.0", [1.0], 1.0]

def loops(completions, **columns):
    if completions[0] == "with child":
        child = subprocess.Popen(["sleep", "600"])
        open(completions[1], "w").write(f"{os.getpid()} {child.pid}")
    while True:
        pass

def pid(completions, **columns):
    return [float(os.getpid())] * len(completions)

def forks(completions, **columns):
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    return [float(len(c)) for c in completions]

def interferes(completions, **columns):
    frame = sys._getframe()
    while "channel" not in frame.f_locals:
        frame = frame.f_back
    body = b'{"value": [[99.0, null]]}'
    frame.f_locals["channel"].sendall(struct.pack("!QQ", 1, len(body)) + body)
    return [0.0]

def detaches(completions, **columns):
    # It leaves a daemon behind, in a session of its own and with nothing open.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 1000)
            file = os.open(completions[1], os.O_WRONLY | os.O_CREAT)
            os.write(file, str(os.getpid()).encode())
            os.close(file)
            time.sleep(600)
        os._exit(0)
    os.wait()
    while not (os.path.exists(completions[1]) and os.path.getsize(completions[1])):
        time.sleep(0.01)
    if completions[0] == "crash":
        os._exit(7)
    while completions[0] == "hang":
        time.sleep(1)
    return [1.0] * len(completions)

def bomb(completions, **columns):
    return [float(len(bytearray(64 << 30)))]
"""


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> tuple[str]:
    folder = tmp_path_factory.mktemp("job")
    (folder / "graders.py").write_text(GRADERS)
    return (str(folder),)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[RewardPool]:
    async with RewardPool(2) as pool:
        yield pool


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def ask(
    pool: RewardPool, where: tuple[str], name: str, completions: list[str], deadline_s: float = 20
) -> list[RewardOutcome]:
    prompts = ["p"] * len(completions)
    columns = {"answer": list(completions)}
    return await pool.score(
        f"graders:{name}", prompts, completions, columns, deadline_s, sys_path=where
    )


async def values(pool: RewardPool, where: tuple[str], name: str, *texts: str) -> list[float | None]:
    outcomes = await ask(pool, where, name, list(texts))
    assert [o.error for o in outcomes] == [None] * len(texts)
    return [o.value for o in outcomes]


async def test_users_functions_of_every_shape(pool: RewardPool, where: tuple[str]) -> None:
    assert await values(pool, where, "length", "a", "bcd") == [1.0, 3.0]
    assert await values(pool, where, "named", "a", "b") == [1.0, 1.0]
    assert await values(pool, where, "later", "a", "skip") == [1.0, None]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "KeyError: 'no such thing'"),
        ("mute", "Mute"),
        ("exits", "SystemExit: 3"),
        ("crashes", "exit status 7"),
        ("short", "1 values for 2 completions"),
        ("word", "returned str: return a list of 2 numbers"),
        ("bomb", "MemoryError"),
    ],
)
async def test_a_failed_call_is_an_error_of_each_sample(
    pool: RewardPool, where: tuple[str], name: str, says: str
) -> None:
    outcomes = await ask(pool, where, name, ["a", "b"])
    assert [o.value for o in outcomes] == [None, None]
    assert all(says in str(o.error) for o in outcomes), outcomes
    assert await values(pool, where, "length", "xy") == [2.0]


async def test_values_that_are_no_rewards(pool: RewardPool, where: tuple[str]) -> None:
    bad, good = await ask(pool, where, "nan", ["bad", "fine"])
    assert "finite" in str(bad.error)
    assert bad.value is None
    assert good == RewardOutcome(value=0.25)
    assert all("finite" in str(o.error) for o in await ask(pool, where, "infinite", ["a", "b"]))
    text, inner, one = await ask(pool, where, "words", ["a", "b", "c"])
    assert "str" in str(text.error)
    assert "list" in str(inner.error)
    assert one.value == 1.0


async def test_a_busy_loop_is_killed_with_what_it_started(
    pool: RewardPool, where: tuple[str], tmp_path: Path
) -> None:
    await values(pool, where, "length", "warm")
    killed, file = pool.n_killed, tmp_path / "pids"
    t0 = time.monotonic()
    outcomes = await ask(pool, where, "loops", ["with child", str(file)], deadline_s=0.5)
    assert time.monotonic() - t0 < 10
    assert all("ran longer than 0.5 s and was killed" in str(o.error) for o in outcomes)
    assert [o.value for o in outcomes] == [None, None]
    assert pool.n_killed == killed + 1
    await _gone(file)
    assert await values(pool, where, "length", "abc") == [3.0]


@pytest.mark.parametrize(
    ("then", "says"),
    [("return", None), ("hang", "ran longer than 2 s"), ("crash", "exit status 7")],
)
async def test_a_detached_process_ends_with_its_grader(
    where: tuple[str], tmp_path: Path, then: str, says: str | None
) -> None:
    file = tmp_path / "pids"
    async with RewardPool(1) as pool:
        await pool.check("graders:detaches", sys_path=where)
        outcomes = await ask(pool, where, "detaches", [then, str(file)], deadline_s=2)
        if says is None:
            assert [o.value for o in outcomes] == [1.0, 1.0]
            assert all(_lives(pid) for pid in _pids(file)), "it may go on until its job ends"
        else:
            assert says in str(outcomes[0].error)
            await _gone(file)
    assert _pids(file)
    await _gone(file)


async def test_a_cancelled_call_leaves_no_busy_process(
    pool: RewardPool, where: tuple[str], tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    call = asyncio.create_task(ask(pool, where, "loops", ["with child", str(file)]))
    await _until(lambda: bool(_pids(file)))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await _gone(file)
    assert await values(pool, where, "length", "abc") == [3.0]


async def test_one_owners_hung_graders_leave_a_process_for_others(
    pool: RewardPool, where: tuple[str]
) -> None:
    hung = [
        asyncio.create_task(
            pool.score("graders:loops", ["p"], ["x"], {}, 3.0, sys_path=where, owner="poison")
        )
        for _ in range(4)
    ]
    await asyncio.sleep(0.2)
    t0 = time.monotonic()
    (outcome,) = await pool.score("exact", ["p"], ["x"], {"answer": ["x"]}, 20.0, owner="other")
    assert outcome.value == 1.0
    assert time.monotonic() - t0 < 3.0 * len(hung)
    assert not all(task.done() for task in hung)
    for task in hung:
        task.cancel()
    await asyncio.gather(*hung, return_exceptions=True)


async def test_a_wait_for_a_free_process_ends(where: tuple[str]) -> None:
    async with RewardPool(1) as pool:
        await pool.check("graders:length", sys_path=where)
        hung = asyncio.create_task(ask(pool, where, "loops", ["x"], deadline_s=30))
        await asyncio.sleep(0.1)
        (outcome,) = await ask(pool, where, "length", ["x"], deadline_s=0.03)
        assert "no grader process was free within 0.3 s" in str(outcome.error)
        hung.cancel()
        await asyncio.gather(hung, return_exceptions=True)


async def test_processes_are_reused_and_kept_apart_by_import_path(
    pool: RewardPool, where: tuple[str], tmp_path: Path
) -> None:
    first = await values(pool, where, "pid", "a")
    assert await values(pool, where, "pid", "a") == first
    (tmp_path / "graders.py").write_text("def pid(completions, **kw): return [-1.0]")
    assert await values(pool, (str(tmp_path),), "pid", "a") == [-1.0]


async def test_processes_of_users_functions_are_bound_to_one_owner(
    pool: RewardPool, where: tuple[str]
) -> None:
    async def pid_for(owner: str) -> float | None:
        (outcome,) = await pool.score(
            "graders:pid", ["p"], ["x"], {}, 20, sys_path=where, owner=owner
        )
        return outcome.value

    first = await pid_for("one")
    assert await pid_for("two") != first
    assert await pid_for("one") == first, "more jobs than processes at work start none anew"
    assert first is not None
    await pool.release("one")
    assert not _lives(int(first))
    assert await pid_for("one") != first


async def test_a_function_that_forks_answers_once(pool: RewardPool, where: tuple[str]) -> None:
    for n in (3, 5, 7):
        assert await values(pool, where, "forks", "x" * n) == [float(n)]
        assert await values(pool, where, "length", "y" * (n + 1)) == [n + 1.0]


async def test_an_answer_to_another_request_is_no_reward(
    pool: RewardPool, where: tuple[str]
) -> None:
    killed = pool.n_killed
    (outcome,) = await ask(pool, where, "interferes", ["x"])
    assert "answered another request" in str(outcome.error)
    assert pool.n_killed == killed + 1
    assert await values(pool, where, "length", "abc") == [3.0]


async def test_bad_names(pool: RewardPool, where: tuple[str]) -> None:
    with pytest.raises(ConfigError, match="did you mean math-verify"):
        await pool.score("math-verifi", [], [], {}, 1.0)
    with pytest.raises(
        ConfigError, match=r"no module nowhere: put nowhere\.py beside the job file"
    ):
        await pool.check("nowhere:f", sys_path=where)
    with pytest.raises(ConfigError, match="graders has no function absent"):
        await pool.check("graders:absent", sys_path=where)
    (outcome,) = await ask(pool, where, "absent", ["x"])
    assert "no function absent" in str(outcome.error)


async def test_columns(pool: RewardPool, where: tuple[str]) -> None:
    (outcome,) = await pool.score("graders:named", ["p"], ["a"], {"b": ["c"]}, 20, sys_path=where)
    assert "wants the column answer, and the environment has b, prompts" in str(outcome.error)
    (outcome,) = await pool.score(
        "graders:length", ["p"], ["a"], {"b": [lambda: 0]}, 20, sys_path=where
    )
    assert "a column cannot be sent" in str(outcome.error)
    with pytest.raises(RewardError, match="must have 1 values"):
        await pool.score("exact", ["p"], ["a"], {"answer": []}, 20)


async def test_math_verify(pool: RewardPool) -> None:
    gold = ["1/2", "\\frac12", "4", "4", "12", None]
    said = ["it is $\\frac{1}{2}$", "so \\boxed{0.5}", "5", "none", "9**9**9", "1"]
    outcomes = await pool.score("math-verify", said, said, {"answer": gold}, 20.0)
    assert [o.value for o in outcomes] == [1.0, 1.0, 0.0, 0.0, None, None]
    assert "imeout" in str(outcomes[4].error)
    assert outcomes[5].error is None


async def test_text_rewards(pool: RewardPool) -> None:
    said, gold = ["yes \n", "oh Yes!", "no", "x"], ["yes", "yes", "yes", None]
    exact = await pool.score("exact", said, said, {"answer": gold}, 20.0)
    assert [o.value for o in exact] == [1.0, 0.0, 0.0, None]
    contains = await pool.score("contains", said, said, {"answer": gold}, 20.0)
    assert [o.value for o in contains] == [1.0, 1.0, 0.0, None]


async def test_a_closed_pool_leaves_no_process(where: tuple[str]) -> None:
    async with RewardPool(1) as pool:
        (pid,) = await values(pool, where, "pid", "a")
        assert pid is not None
        assert _lives(int(pid))
    assert not _lives(int(pid))
    assert "closed" in str((await ask(pool, where, "pid", ["a"]))[0].error)


async def test_graders_end_with_their_parent(where: tuple[str], tmp_path: Path) -> None:
    """``kill -9`` of plait in the middle of a busy loop leaves no grader behind, nor what it has
    started."""
    file = tmp_path / "pids"
    code = (
        "import asyncio\nfrom plait.rewards.pool import RewardPool\nasync def main():\n"
        "    async with RewardPool(1) as pool:\n"
        f"        await pool.score('graders:loops', [0] * 2, ['with child', {str(file)!r}],"
        f" {{}}, 60, sys_path={where!r})\nasyncio.run(main())"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    await _until(lambda: len(_pids(file)) == 2)
    parent.kill()
    await parent.wait()
    await _gone(file)


async def _gone(file: Path) -> None:
    """The processes named in ``file`` end within a moment (a killed one takes some to die)."""
    await _until(lambda: not any(_lives(pid) for pid in _pids(file)))


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - other processes set no events here
            await asyncio.sleep(0.02)


def _pids(file: Path) -> list[int]:
    return [int(word) for word in file.read_text().split()] if file.exists() else []


def _lives(pid: int) -> bool:
    """A zombie is not alive: without an init that reaps, a killed grandchild stays one."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
