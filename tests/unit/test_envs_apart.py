"""Apart: a user's environment in a process of its own: it serves, it fails, it is started again."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from plait.cluster import sandbox
from plait.cluster.limits import FIRST_TO_GO
from plait.core.errors import ConfigError, EnvironmentFailure
from plait.envs.apart import channel as channel_module
from plait.envs.apart import source as source_module
from plait.envs.apart.environment import ApartEnv
from plait.envs.apart.place import Place
from plait.envs.apart.replies import MAX_COLUMNS_BYTES, MAX_REPLY_BYTES
from plait.envs.apart.source import ApartSource
from plait.envs.protocol import Turn
from plait.envs.turns import read_turn
from plait.models.tokenizer import Tokenizer

MINE = """
import asyncio, os, pathlib, random, socket, struct, subprocess, sys, time
from plait.envs.protocol import Turn
from plait.envs.single import Problem, SingleTurn

class Env:
    stop = (";",)

    def __init__(self, source, index, split):
        self.source, self.index, self.split = source, index, split
        self.turns, self.closed, self.event = 0, 0, asyncio.Event()

    async def start(self):
        print("starting", self.index)
        if self.index == 99:
            os._exit(13)
        order = list({f"{self.index}{c}" for c in "abcdef"})
        drawn = random.Random(f"{self.source.seed}/{self.split}/{self.index}").random()
        return self.source.tokenizer.encode(f"{self.split} {self.index} {order} {drawn}?")

    async def step(self, tokens):
        self.turns += 1
        said = self.source.tokenizer.decode(tokens)
        what, _, where = said.partition(" ")
        return await getattr(self, what)(where)

    async def more(self, where):
        return Turn(tokens=self.source.tokenizer.encode("more"), done=False)

    async def right(self, where):
        return Turn(reward=1.0, info={"why": "right", "turns": self.turns})

    async def wait(self, where):
        self.source.waiting.append(self.event)
        await self.event.wait()
        return Turn(reward=0.5)

    async def release(self, where):
        for event in self.source.waiting:
            event.set()
        return Turn(reward=float(len(self.source.waiting)))

    async def blocks(self, where):
        time.sleep(600)

    async def raises(self, where):
        raise KeyError("no such tool")

    async def exits(self, where):
        sys.exit(3)

    async def crashes(self, where):
        os._exit(7)

    async def bomb(self, where):
        return Turn(reward=float(len(bytearray(64 << 30))))

    async def prints(self, where):
        print("to the log")
        os.write(1, b"and straight\\n")
        return Turn(reward=0.0)

    async def returns(self, what):
        return eval(what)

    async def stops(self, where):
        self.stop = eval(where)
        return Turn(reward=0.0)

    async def forks(self, when):
        if os.fork() == 0:
            while when == "later":
                await asyncio.sleep(0)
            return Turn(reward=99.0)
        if when == "now":
            os.wait()
        return Turn(reward=0.25)

    async def detaches(self, seconds):
        subprocess.Popen(["sleep", seconds], start_new_session=True)
        return Turn(done=False)

    async def writes(self, what):
        frame = sys._getframe()
        while "writer" not in frame.f_locals:
            frame = frame.f_back or next(
                c.cr_frame for c in map(lambda t: t.get_coro(), asyncio.all_tasks())
                if "writer" in c.cr_frame.f_locals)
        number, n_bytes = map(int, what.split())
        frame.f_locals["writer"].write(struct.pack("!QQ", number, n_bytes) + b"x" * min(n_bytes, 9))
        await asyncio.sleep(600)

    async def look(self, how):
        what, _, where = how.partition(" ")
        try:
            if what == "read":
                found = len(pathlib.Path(where).read_bytes())
            if what == "list":
                found = len(os.listdir(where))
            if what == "write":
                found = pathlib.Path(where).write_text("x")
            if what == "connect":
                socket.create_connection(("127.0.0.1", int(where)), timeout=1)
                found = 1
            return Turn(reward=float(found), info={"why": "ok"})
        except OSError as error:
            return Turn(info={"why": type(error).__name__})

    def columns(self):
        if self.index == 5:
            raise LookupError("no columns")
        if self.index == 6:
            return {"all": "x" * (2 << 20)}
        if self.index == 7:
            return {"odd": object()}
        return {"answer": self.index, "turns": self.turns, "closed": self.source.n_closed}

    def close(self):
        self.source.n_closed += 1
        if self.index == 8:
            raise ValueError("not even that")


class Source:
    name, same_prompt, max_turns, max_observation_tokens = "mine", False, 4, 40

    def __init__(self, config, tokenizer, seed):
        self.tokenizer, self.seed, self.waiting, self.n_closed = tokenizer, seed, [], 0
        self.file = config.get("file")

    def make(self, index, split):
        return Env(self, index, split)

    async def aclose(self):
        print("the source is closed")


class Reverse(SingleTurn):
    def generate(self, rng):
        return Problem(prompt="".join(rng.choices("abcde", k=5)))


def exits(config, tokenizer, seed):
    sys.exit(3)


def crashes(config, tokenizer, seed):
    os._exit(4)


def hangs(config, tokenizer, seed):
    time.sleep(600)


def nothing(config, tokenizer, seed):
    return 7


class Odd(Source):
    @property
    def max_turns(self):
        return "many"
"""
needs_bubblewrap = pytest.mark.skipif(not sandbox.available(), reason="no bubblewrap here")
SOON_S = 30.0
MARK = f"600.{os.getpid()}"
"""How long a process of these tests sleeps that is to be found among all of a machine."""


@pytest.fixture(params=[False, pytest.param(True, marks=needs_bubblewrap)], ids=["bare", "boxed"])
def boxed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    place = tmp_path / "job"
    place.mkdir()
    (place / "mine.py").write_text(MINE)
    (tmp_path / "secret").write_text("tml-secret")
    return place


class Told:
    """A source and its tokenizer: what is said to its environments is text."""

    def __init__(self, source: ApartSource, tokenizer: Tokenizer) -> None:
        self.source, self.tokenizer = source, tokenizer

    async def started(self, index: int = 0, split: str = "train") -> ApartEnv:
        env = self.source.make(index, split)
        await env.start()
        return env

    async def step(self, env: ApartEnv, what: str) -> Turn:
        return read_turn(await env.step(self.tokenizer.encode(what)), self.tokenizer.vocab_size)

    async def says(self, what: str, index: int = 0) -> Turn:
        env = await self.started(index)
        try:
            return await self.step(env, what)
        finally:
            env.close()

    async def fails(self, what: str) -> str:
        with pytest.raises(EnvironmentFailure) as failure:
            await self.says(what)
        return str(failure.value)


@asynccontextmanager
async def opened(
    home: Path, model: Path, *, boxed: bool = False, target: str = "mine:Source", **config: Any
) -> AsyncIterator[Told]:
    place = Place(sys_path=(str(home),), model_dir=model, log=home.parent / "log", sandboxed=boxed)
    source = ApartSource(target, config, seed=3, place=place)
    try:
        async with asyncio.timeout(2 * SOON_S):
            await source.open()
            yield Told(source, Tokenizer(model))
    finally:
        await source.aclose()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not true():  # noqa: ASYNC110 - other processes set no events here
            await asyncio.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


def first_to_go(pid: int) -> bool:
    return Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == str(FIRST_TO_GO)


def marked() -> list[int]:
    """The process that sleeps for ``MARK`` seconds, and the one that started it."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"sleep\0{MARK}".encode() in (place / "cmdline").read_bytes():
                after = (place / "stat").read_text().rpartition(")")[2].split()
                return [int(place.name), int(after[1])]
        except OSError:
            continue
    return []


async def test_it_is_a_source_like_any_other(home: Path, byte_model: Path, boxed: bool) -> None:
    async with opened(home, byte_model, boxed=boxed) as told:
        source = told.source
        assert (source.name, source.same_prompt, source.max_turns) == ("mine", False, 4)
        assert source.max_observation_tokens == 40
        env = source.make(2, "eval")
        prompt = told.tokenizer.decode(await env.start())
        assert prompt.startswith("eval 2 [")
        assert env.stop == (";",)
        assert env.columns() == {"answer": 2, "turns": 0, "closed": 0}
        more = await told.step(env, "more")
        assert (told.tokenizer.decode(more.tokens), more.reward, more.done) == ("more", None, False)
        last = await told.step(env, "right")
        assert (last.reward, last.done, last.info) == (1.0, True, {"why": "right"})
        env.close()
        env.close()
        assert env.columns() == {"answer": 2, "turns": 2, "closed": 0}
        assert (await told.started()).columns()["closed"] == 1, "once, and in the process"


async def test_one_sample_that_waits_holds_up_no_other(home: Path, byte_model: Path) -> None:
    async with opened(home, byte_model) as told:
        envs = [await told.started(i) for i in range(20)]
        slow = [asyncio.create_task(told.step(env, "wait")) for env in envs]
        for _ in range(3):
            assert (await told.says("right")).reward == 1.0
        assert not any(task.done() for task in slow)
        assert (await told.says("release")).reward == 20.0
        assert [turn.reward for turn in await asyncio.gather(*slow)] == [0.5] * 20


async def test_one_index_is_one_problem_in_every_process(
    home: Path, byte_model: Path, boxed: bool
) -> None:
    async def prompts(told: Told) -> list[tuple[int, ...]]:
        return [await told.source.make(i, s).start() for i in (0, 1) for s in ("train", "eval")]

    async with opened(home, byte_model, boxed=boxed) as told:
        first = await prompts(told)
        await told.fails("crashes")
        assert await prompts(told) == first
        assert told.source.n_started == 2
    async with opened(home, byte_model, boxed=boxed) as told:
        assert await prompts(told) == first
    assert len(set(first)) == 4


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("raises", "KeyError: 'no such tool'"),
        ("exits", "raised SystemExit: 3"),
        ("bomb", "MemoryError"),
        ("returns 7", "step() returned int: return a Turn"),
        ("returns Turn(reward='much')", "reward is str where a number belongs"),
        ("returns Turn(reward=float('nan'))", "rewards must be finite"),
        ("returns Turn(reward=10**400)", "rewards must be finite"),
        ("returns Turn(tokens='ab')", "hold str: give token ids"),
        ("returns Turn(tokens=(1, 999))", "999, which is no token of the model"),
        ("returns Turn(tokens=(-1,))", "-1, which is no token of the model"),
        ("returns Turn(info=3)", "info is int where a mapping belongs"),
        ("stops 'ab'", "stop is str: give a tuple of strings"),
        ("stops ['', 'b']", "stop holds what is no string, or an empty one"),
        ("stops ['x' * 9999]", "longer than 2000 characters"),
        ("absent", "AttributeError"),
    ],
)
async def test_what_goes_wrong_is_that_samples_error(
    home: Path, byte_model: Path, what: str, says: str
) -> None:
    async with opened(home, byte_model) as told:
        other = await told.started(1)
        assert says in await told.fails(what)
        assert (await told.step(other, "right")).reward == 1.0, "in the same process"
        assert told.source.n_started == 1


async def test_columns_are_told_when_they_are_asked_for(home: Path, byte_model: Path) -> None:
    async with opened(home, byte_model) as told:
        for index, says in (
            (5, "LookupError: no columns"),
            (6, f"at most {MAX_COLUMNS_BYTES} are taken"),
            (7, "object is no JSON"),
        ):
            env = await told.started(index)
            assert (await told.step(env, "right")).reward == 1.0
            with pytest.raises(EnvironmentFailure, match=says):
                env.columns()
        with pytest.raises(EnvironmentFailure, match="before it was started"):
            told.source.make(0, "train").columns()


async def test_a_process_that_ends_fails_what_was_under_way_and_no_more(
    home: Path, byte_model: Path, boxed: bool
) -> None:
    async with opened(home, byte_model, boxed=boxed) as told:
        waiting = await told.started(1)
        task = asyncio.create_task(told.step(waiting, "wait"))
        await told.says("right")  # and so the other is under way
        assert "process ended (exit status 7)" in await told.fails("crashes")
        with pytest.raises(EnvironmentFailure, match="process ended"):
            await task
        assert (await told.says("right")).reward == 1.0
        with pytest.raises(EnvironmentFailure, match="process ended"):
            await told.step(waiting, "right")
        waiting.close()
        assert told.source.n_started == 2


async def test_a_process_that_keeps_ending_is_not_started_for_ever(
    home: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "MAX_DEATHS", 2)
    async with opened(home, byte_model) as told:
        for _ in range(3):
            assert (await told.says("right")).reward == 1.0
            await told.fails("crashes")
        assert (await told.says("more")).done is False
        with pytest.raises(EnvironmentFailure, match=r"ended 2 times in a row.*exit status 13"):
            await told.source.make(99, "train").start()
        assert "ended 2 times in a row" in await told.fails("right")


async def test_a_blocked_loop_is_ended(
    home: Path, byte_model: Path, boxed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "GRACE_S", 0.2)
    async with opened(home, byte_model, boxed=boxed) as told:
        env, other = await told.started(), await told.started(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await told.step(env, "blocks")
        with pytest.raises(EnvironmentFailure, match="event loop was blocked"):
            await told.step(other, "right")
        assert (await told.says("right")).reward == 1.0


async def test_a_sample_that_is_given_up_leaves_the_others(home: Path, byte_model: Path) -> None:
    async with opened(home, byte_model) as told:
        env, other = await told.started(), await told.started(1)
        slow = asyncio.create_task(told.step(other, "wait"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await told.step(env, "wait")
        env.close()
        channel = told.source._channel
        assert channel is not None
        await until(lambda: len(channel._asked) == 1)
        assert channel._given_up == {}, "it has stopped in time: nothing is going to be ended"
        await told.says("release")
        assert (await slow).reward == 0.5
        assert told.source.n_started == 1


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("writes 1 5", "answered what it was not asked"),
        (f"writes 2 {MAX_REPLY_BYTES + 1}", f"at most {MAX_REPLY_BYTES} are read"),
        (f"returns Turn(tokens=(1,) * {MAX_REPLY_BYTES})", f"at most {MAX_REPLY_BYTES} are read"),
    ],
)
async def test_a_channel_that_is_misused_ends(
    home: Path, byte_model: Path, what: str, says: str
) -> None:
    async with opened(home, byte_model) as told:
        assert says in await told.fails(what)
        assert (await told.says("right")).reward == 1.0


async def test_rubbish_on_the_channel_is_that_samples_error(home: Path, byte_model: Path) -> None:
    async with opened(home, byte_model) as told:
        env = await told.started()
        assert told.source._channel is not None
        number = told.source._channel._n + 1
        with pytest.raises(EnvironmentFailure, match="sent what is no answer"):
            await told.step(env, f"writes {number} 9")


async def test_a_copy_that_was_forked_neither_reads_nor_answers(
    home: Path, byte_model: Path, boxed: bool
) -> None:
    async with opened(home, byte_model, boxed=boxed) as told:
        for when in ("now", "later", "now"):
            assert (await told.says(f"forks {when}")).reward == 0.25
            for _ in range(50):
                assert (await told.says("right")).reward == 1.0
        assert told.source.n_started == 1


async def test_what_it_started_ends_with_it(home: Path, byte_model: Path, boxed: bool) -> None:
    async with opened(home, byte_model, boxed=boxed) as told:
        await told.says(f"detaches {MARK}")
        family = marked()
        assert len(family) == 2
        for pid in family:
            assert first_to_go(pid)
    await until(lambda: not any(lives(pid) for pid in family))


async def test_it_ends_with_its_parent(home: Path, byte_model: Path, boxed: bool) -> None:
    """``kill -9`` of the server leaves neither the process nor what it has started."""
    code = (
        "import asyncio\nfrom pathlib import Path\n"
        "from plait.envs.apart.place import Place\n"
        "from plait.envs.apart.source import ApartSource\n"
        "from plait.models.tokenizer import Tokenizer\n"
        "async def main():\n"
        f"    model = Path({str(byte_model)!r})\n"
        f"    place = Place(sys_path=({str(home)!r},), model_dir=model, sandboxed={boxed})\n"
        "    source = ApartSource('mine:Source', {}, seed=1, place=place)\n"
        "    await source.open()\n"
        "    one, two = source.make(0, 'train'), source.make(1, 'train')\n"
        "    await one.start()\n    await two.start()\n"
        f"    await one.step(Tokenizer(model).encode('detaches {MARK}'))\n"
        "    await two.step(Tokenizer(model).encode('blocks'))\n"
        "asyncio.run(main())"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    await until(lambda: len(marked()) == 2)
    family = marked()
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await until(lambda: not any(lives(pid) for pid in family))


async def test_what_it_prints_is_in_its_log(home: Path, byte_model: Path, boxed: bool) -> None:
    async with opened(home, byte_model, boxed=boxed) as told:
        await told.says("prints", index=8)
        await told.fails("raises")
    log = (home.parent / "log").read_text()
    for line in (
        "starting 8",
        "to the log",
        "and straight",
        "KeyError: 'no such tool'",
        "ValueError: not even that",
        "the source is closed",
    ):
        assert line in log


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("absent:Env", "no module absent"),
        ("mine:Sourec", "did you mean mine:Source"),
        ("mine:exits", "SystemExit: 3"),
        ("mine:crashes", "its process ended as it was made (exit status 4)"),
        ("mine:hangs", "was not made within 1 s"),
        ("mine:nothing", "which has no name"),
        ("mine:Odd", "max_turns is str: give a whole number"),
        ("mine:Reverse", "has no key colour"),
    ],
)
async def test_what_cannot_be_made_says_why(
    home: Path, byte_model: Path, target: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if target == "mine:hangs":
        monkeypatch.setattr(source_module, "MAKE_S", 1.0)
    with pytest.raises(ConfigError) as failure:
        async with opened(home, byte_model, target=target, colour=1):
            pass
    assert says in str(failure.value)
    assert target in str(failure.value)


async def test_a_one_turn_environment_without_rewards_says_so(home: Path, byte_model: Path) -> None:
    async with opened(home, byte_model, target="mine:Reverse") as told:
        assert (told.source.scores, told.source.max_turns, told.source.same_prompt) == (
            False,
            1,
            True,
        )


@needs_bubblewrap
async def test_in_a_sandbox_it_reaches_nothing_but_its_own(home: Path, byte_model: Path) -> None:
    async def look(told: Told, what: str, where: object) -> str:
        return str((await told.says(f"look {what} {where}")).info["why"])

    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with opened(home, byte_model, boxed=True) as told:
        assert await look(told, "read", home / "mine.py") == "ok"
        assert await look(told, "read", byte_model / "tokenizer.json") == "ok"
        assert await look(told, "read", home.parent / "secret") == "FileNotFoundError"
        assert await look(told, "read", home.parent / "log") == "FileNotFoundError"
        assert await look(told, "read", f"/proc/{os.getpid()}/environ") == "FileNotFoundError"
        for place in (home / "mine.py", byte_model / "x", "/x", "/dev/x", "/usr/x"):
            assert await look(told, "write", place) in ("OSError", "PermissionError"), place
        assert await look(told, "write", "/tmp/x") == "ok"
        assert await look(told, "connect", port) in ("ConnectionRefusedError", "OSError")
    server.close()
    await server.wait_closed()


@needs_bubblewrap
async def test_a_model_of_links_is_seen_in_a_sandbox(home: Path, byte_model: Path) -> None:
    blobs, model = home.parent / "blobs", home.parent / "snapshot"
    blobs.mkdir()
    model.mkdir()
    for n, file in enumerate(byte_model.iterdir()):  # noqa: ASYNC240 - a test
        (blobs / str(n)).write_bytes(file.read_bytes())
        (model / file.name).symlink_to(Path("..") / "blobs" / str(n))
    async with opened(home, model, boxed=True) as told:
        assert (await told.says("right")).reward == 1.0


async def test_without_bubblewrap_nothing_runs(
    home: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "PROGRAM", "no-such-program")
    with pytest.raises(ConfigError, match="bubblewrap"):
        async with opened(home, byte_model, boxed=True):
            pass
    assert not (home.parent / "log").exists()


async def test_a_closed_source_starts_nothing(home: Path, byte_model: Path) -> None:
    async with opened(home, byte_model) as told:
        pass
    with pytest.raises(EnvironmentFailure, match="is closed"):
        await told.source.make(0, "train").start()
    assert told.source.n_started == 1
