"""What tests of environments in processes of their own share: a user's module, and talk."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from plait.cluster import sandbox
from plait.cluster.limits import FIRST_TO_GO
from plait.core.errors import EnvironmentFailure
from plait.envs.apart.environment import ApartEnv
from plait.envs.apart.place import Place
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
