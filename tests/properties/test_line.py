"""A line under any order of requests, duplicates, failures and ends by force: each acknowledged
request ends once, and the model is what its answers say.
"""

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from itertools import count
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plait.core.errors import EngineError, Limited, RequestError, StoreError
from plait.core.ids import TenantId
from plait.core.operations import AdamParams
from plait.runtime.gradients import GRADIENT_FAILED
from plait.service import endings, held, intake, line, log
from plait.service.entry import Entry
from plait.service.hands import Down
from plait.service.intake import AHEAD
from plait.service.line import Line
from plait.service.log import Log, Owner
from plait.service.order import GAP_S
from plait.service.ports import Failed, Ready
from plait.service.work import Batch, CheckpointKind, Kind, SaveCheckpoint, Step, Work
from plait.store.store import Store

SESSION, TENANT = "s-00000000", TenantId("local")
SOON_S = 20.0
REMEMBERED, MANY = 4, 60

GRADIENT = Batch(data=(), loss="good", config={}, train=True)
BAD_GRADIENT = Batch(data=(), loss="bad", config={}, train=True)
STEP = Step(adam=AdamParams(learning_rate=1.0))
BAD_STEP = Step(adam=AdamParams(learning_rate=-1.0))
SAVE = SaveCheckpoint(name="x", kind=CheckpointKind.TRAINING)
KINDS: dict[str, tuple[Kind, Work]] = {
    "gradient": (Kind.FORWARD_BACKWARD, GRADIENT),
    "bad gradient": (Kind.FORWARD_BACKWARD, BAD_GRADIENT),
    "step": (Kind.OPTIM_STEP, STEP),
    "bad step": (Kind.OPTIM_STEP, BAD_STEP),
    "save": (Kind.SAVE_WEIGHTS, SAVE),
}


NUMBERS = count()


class Life:
    """One process: what it does to the disk after its death does not count."""

    dead = False


class Disk:
    """What outlives processes besides the store: the model as it was last committed."""

    def __init__(self) -> None:
        self.committed, self.steps = -1, list[tuple[int, tuple[int, ...]]]()


class Writer:
    """Writes of one life."""

    def __init__(self, life: Life) -> None:
        self._life = life

    async def write(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        if self._life.dead:
            raise StoreError("dead")
        answer = function(*args, **kwargs)
        await asyncio.sleep(0)
        return answer


class Codec:
    def read(self, kind: Kind, body: bytes) -> Work:
        work: Work = pickle.loads(body)
        return work

    def write(self, kind: Kind, work: object, answer: object) -> bytes:
        raise AssertionError("answers are the hands' to write")


class Hands:
    """A model that remembers which gradients each of its steps was made of."""

    def __init__(self, line: Line, disk: Disk, life: Life) -> None:
        self._line, self._disk, self._life = line, disk, life
        self._turn, self._sum = asyncio.Lock(), list[int]()
        self.down = False

    async def committed(self) -> tuple[int, Callable[[Work], bytes] | None]:
        last = self._disk.committed
        return last, (lambda work: f"step {last}".encode()) if last >= 0 else None

    async def take_up(self) -> None:
        await asyncio.sleep(0)
        self._sum, self.down = [], False

    def held(self) -> str:
        return ""

    def carry(self, entry: Entry, work: Work) -> Awaitable[bytes]:
        return self._carry(entry, work)

    async def _carry(self, entry: Entry, work: Work) -> bytes:
        async with self._turn:
            for _ in range(entry.seq % 3):
                await asyncio.sleep(0)
            if self.down:
                raise Down("the workers are gone")
            match work:
                case Batch(loss="bad"):
                    raise RequestError("a bad gradient")
                case Batch():
                    self._sum.append(entry.seq)
                    return f"gradient {entry.seq} of life {id(self._life)}".encode()
                case Step(adam=AdamParams(learning_rate=-1.0)):
                    raise EngineError("a bad step")
                case Step():
                    await self._line.settled(entry)
                    if self._life.dead:
                        raise Down("dead")
                    self._disk.steps.append((entry.seq, tuple(self._sum)))
                    self._disk.committed, self._sum = entry.seq, []
                    await asyncio.sleep(0)
                    return f"step {entry.seq}".encode()
        return f"other {entry.seq}".encode()

    def idle(self) -> bool:
        return not self._sum

    async def leave(self, *, ended: str) -> None:
        self._sum = []

    def waits(self) -> str:
        return ""


class LineMachine(RuleBasedStateMachine):
    """Requests in any order, twice, wrong, never; processes that end in between."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = _store()
        self.owner = Owner(
            model_id=f"{SESSION}:train:{next(NUMBERS)}", session_id=SESSION, tenant_id=TENANT
        )
        self.disk, self.now = Disk(), 0.0
        self.behind_s = 0.0
        self.asked: dict[int, str] = {}
        self.blind: dict[int, list[int]] = {}
        """Of a step: requests of whose failure its client had not heard when it asked for it."""
        self.seen: dict[int, Ready | Failed] = {}
        self.runner.run(self._begin())

    async def _begin(self) -> None:
        self.life = life = Life()
        log = Log(self.store, Writer(life), wall=self.wall)  # type: ignore[arg-type]

        def make(one: Line) -> Hands:
            self.hands = Hands(one, self.disk, life)
            return self.hands

        self.line = Line(
            self.owner,
            log=log,
            codec=Codec(),
            hands=make,
            clock=lambda: self.now,
        )
        rows = await log.line(self.owner.model_id)
        self.line.intake.recall(rows, await log.sizes(self.owner.model_id))
        if rows:
            self.line.wake()

    def wall(self) -> float:
        self.now += 1e-6
        return self.now - self.behind_s

    @rule(kind=st.sampled_from(sorted(KINDS)), ahead=st.integers(0, 4), spins=st.integers(0, 12))
    def ask(self, kind: str, ahead: int, spins: int) -> None:
        """A request of the next number, or of one a little later or earlier."""
        self._ask(max(0, self._next() + ahead - 1), kind, spins)

    def _ask(self, seq: int, kind: str, spins: int) -> None:
        what, work = KINDS[kind]

        async def ask() -> None:
            if seq not in self.asked:
                intake = self.line.intake
                known = [(s, intake.entries.get(s)) for s in range(seq) if not self._gone(s)]
                self.blind[seq] = [s for s, e in known if e is None or not e.over.is_set()]
            promise = await self.line.intake.submit(seq, what, pickle.dumps(work))
            assert promise == f"{self.owner.model_id}:{seq}"
            await _spin(spins)

        self.runner.run(ask())
        self.asked.setdefault(seq, kind)

    def _gone(self, seq: int) -> bool:
        """It ended so long ago that the line itself does not know it any more."""
        return seq not in self.line.intake.entries and self.line.intake.order.used(seq)

    @rule(
        kinds=st.lists(st.sampled_from(["gradient", "bad gradient"]), min_size=1, max_size=2),
        order=st.permutations(range(3)),
        spins=st.integers(0, 60),
        dies=st.booleans(),
    )
    def update(self, kinds: list[str], order: list[int], spins: int, dies: bool) -> None:
        """Gradients and the step behind them, sent together; perhaps the last of a process."""
        first, asked = self._next(), [*kinds, "step"]
        for i in [i for i in order if i < len(asked)]:
            self._ask(first + i, asked[i], 0)
        if dies:
            self.dies(spins)

    @rule(ahead=st.integers(0, 2))
    def refuse(self, ahead: int) -> None:
        """A number that a door uses up."""
        seq = self._next() + ahead
        self.runner.run(self.line.intake.skip(seq, "refused"))
        self.asked.setdefault(seq, "refused")

    @rule()
    def never_comes(self) -> None:
        """What holds others up is given up."""
        until = max(self.asked, default=-1)
        self.now += GAP_S + 1.0
        self.runner.run(self._ends(range(until + 1)))
        for seq in range(until + 1):
            self.asked.setdefault(seq, "given up")

    @rule(seconds=st.sampled_from([-3600.0, 3600.0]))
    def clock_jumps(self, seconds: float) -> None:
        """Somebody puts the wall clock forward, or back."""
        self.behind_s += seconds

    @rule(spins=st.integers(0, 40))
    def dies(self, spins: int) -> None:
        """The process ends by force; another one goes on."""

        async def die() -> None:
            await _spin(spins)
            self.life.dead = True
            await self.line.stop()
            await self._begin()

        self.runner.run(die())

    @rule(spins=st.integers(0, 6))
    def workers_die(self, spins: int) -> None:
        """All workers of the base model are gone; others come, and the process goes on."""
        self.hands.down = True
        self.runner.run(_spin(spins))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        """An answer does not change once it was seen."""
        seq = data.draw(st.sampled_from(sorted(self.asked)))
        found = self.runner.run(self.line.outcome(seq, 0.0))
        if isinstance(found, Ready | Failed):
            assert self.seen.setdefault(seq, found) == found

    @invariant()
    def steps_are_in_order(self) -> None:
        numbers = [seq for seq, _ in self.disk.steps]
        assert numbers == sorted(set(numbers)), "a step was made twice, or out of order"

    def teardown(self) -> None:
        self.never_comes()
        self.dies(0)
        numbers = range(max(self.asked, default=-1) + 1)
        ends = self.runner.run(self._ends(numbers))
        for seq, end in self.seen.items():
            assert ends[seq] == end
        self._check(ends)
        kept = self.line.intake.held
        assert kept.sizes == self.store.requests.sizes(self.owner.model_id)
        assert kept.n_bytes == sum(kept.sizes.values())
        self.runner.run(self.line.stop())
        self.runner.close()

    def _check(self, ends: dict[int, Ready | Failed]) -> None:
        """The model is what the answers say that it is."""
        sum_, steps, bad = list[int](), list[tuple[int, tuple[int, ...]]](), set[int]()
        for seq, end in sorted(ends.items()):
            kind, good = self.asked[seq], isinstance(end, Ready)
            spoilt = bad & set(self.blind.get(seq, ()))
            if kind == "step" and spoilt:
                assert not good, f"step {seq} was asked for behind a gradient that failed"
            if kind == "gradient":
                assert good
                sum_.append(seq)
            elif kind == "step" and good:
                steps.append((seq, tuple(sum_)))
                sum_, bad = [], set()
            elif kind == "step":
                assert spoilt, f"step {seq} failed without a cause: {end}"
                assert isinstance(end, Failed)
                assert GRADIENT_FAILED in end.error
                assert f"(request {min(spoilt)}: " in end.error
                assert end.category == "user", "it is as the gradient's failure is"
            else:
                assert good is (kind == "save")
                if kind == "bad gradient":
                    bad.add(seq)
        assert self.disk.steps == steps

    async def _ends(self, numbers: range) -> dict[int, Ready | Failed]:
        ends = {}
        self.line.wake()
        for seq in numbers:
            end = await self.line.outcome(seq, SOON_S)
            async with asyncio.timeout(SOON_S):
                while end is None:  # it is missing and is about to be given up
                    await asyncio.sleep(0)
                    end = await self.line.outcome(seq, SOON_S)
            assert isinstance(end, Ready | Failed), f"request {seq} has not ended: {end}"
            ends[seq] = end
        return ends

    def _next(self) -> int:
        seq = 0
        while seq in self.asked:
            seq += 1
        return seq


@cache
def _store() -> Store:
    """One for all examples: each has a model of its own in it."""
    store = Store("sqlite://")
    store.tenants.ensure(TENANT, now=0.0)
    store.sessions.open(SESSION, tenant_id=TENANT, told={}, now=0.0)
    return store


async def _spin(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def _at_once(function: Callable[..., Any], *args: Any) -> Any:
    await asyncio.sleep(0)
    return function(*args)


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same example is the same every time."""
    monkeypatch.setattr(asyncio, "to_thread", _at_once)
    monkeypatch.setattr(line, "AGAIN_S", 0.0)
    monkeypatch.setattr(endings, "AGAIN_S", 0.0)


LineMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)


class TestLine(LineMachine.TestCase):
    """Run by pytest."""


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines remember hardly anything."""
    monkeypatch.setattr(intake, "REMEMBERED", REMEMBERED)
    monkeypatch.setattr(log, "RECALLED", REMEMBERED)


@pytest.mark.usefixtures("forgetful")
class TestForgetfulLine(LineMachine.TestCase):
    """The same where nearly all is let go."""


@pytest.fixture
def machine(forgetful: None) -> Iterator[LineMachine]:
    """A line with a request that has ended; it is as its answers say at the end."""
    made = LineMachine()
    made._ask(0, "save", 20)
    yield made
    made.teardown()


def _ends(machine: LineMachine) -> dict[int, Ready | Failed]:
    return machine.runner.run(machine._ends(range(machine._next())))


def test_what_ended_long_ago_is_let_go_and_stays_used(machine: LineMachine) -> None:
    for _ in range(MANY):
        machine._ask(machine._next(), "save", 2)
    told = _ends(machine)
    for _ in "ab":  # in this life, and in one that has read all from the store
        assert _ends(machine) == told
        assert len(machine.line.intake.entries) <= 3 * REMEMBERED + AHEAD
        for seq in (1, MANY // 2, MANY):
            machine._ask(seq, "gradient", 2)  # the id of the original, and nothing else
        assert _ends(machine) == told
        machine._ask(machine._next(), "save", 2)
        told = _ends(machine)
        assert machine.line.intake.order.gives_up_at() is None, "nothing is missing"
        machine.dies(0)


@pytest.mark.parametrize("loss", ["workers_die", "dies"])
def test_a_gradient_far_back_is_made_again(machine: LineMachine, loss: str) -> None:
    for kind in ("gradient", *["save"] * MANY, "gradient", *["save"] * MANY):
        machine._ask(machine._next(), kind, 2)
    _ends(machine)
    getattr(machine, loss)(0)
    machine._ask(machine._next(), "step", 2)
    assert isinstance(_ends(machine)[2 * MANY + 3], Ready)
    assert machine.disk.steps == [(2 * MANY + 3, (1, MANY + 2))]


def test_a_step_that_failed_lets_no_gradient_go(machine: LineMachine) -> None:
    gradients = tuple(range(1, MANY + 1))
    for kind in (*["gradient"] * MANY, "bad gradient", "step"):
        machine._ask(machine._next(), kind, 0)
    for _ in range(2 * MANY):
        machine._ask(machine._next(), "save", 0)
    _ends(machine)
    machine.workers_die(0)
    step = machine._next()
    machine._ask(step, "step", 2)
    _ends(machine)
    assert machine.disk.steps == [(step, gradients)]


def test_a_gradient_that_fails_late_is_known_to_the_step_far_behind_it(
    machine: LineMachine,
) -> None:
    _ends(machine)
    turn = machine.hands._turn
    machine.runner.run(turn.acquire())
    machine._ask(1, "bad gradient", 20)
    for _ in range(MANY):
        machine.refuse(0)
    step = machine._next()
    machine._ask(step, "step", 20)
    for _ in range(MANY):
        machine.refuse(0)
    turn.release()
    assert isinstance(_ends(machine)[step], Failed)
    assert machine.disk.steps == []


@pytest.mark.parametrize("limit", ["MAX_REQUESTS", "MAX_BYTES"])
def test_gradients_without_a_step_are_bounded(
    machine: LineMachine, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(pickle.dumps(GRADIENT))
    monkeypatch.setattr(held, limit, MANY if limit == "MAX_REQUESTS" else MANY * size)
    for _ in range(MANY):
        machine._ask(machine._next(), "gradient", 0)
    for _ in "ab":  # in this life, and in one that has read all from the store
        _ends(machine)
        with pytest.raises(Limited, match="call optim_step"):
            machine._ask(machine._next(), "gradient", 0)
        machine._ask(MANY, "gradient", 0)  # the same again is no new one
        machine.dies(0)
    machine._ask(machine._next(), "step", 2)
    assert isinstance(_ends(machine)[MANY + 1], Ready)
    assert machine.line.intake.held.n_bytes == 0
    machine._ask(machine._next(), "gradient", 0)


def test_what_waits_for_a_number_that_is_missing_is_bounded(
    machine: LineMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ends(machine)
    monkeypatch.setattr(held, "MAX_REQUESTS", MANY)
    for seq in range(2, MANY + 2):
        machine._ask(seq, "save", 0)
    with pytest.raises(Limited, match="have not ended"):
        machine._ask(MANY + 2, "save", 0)
    machine._ask(1, "save", 2)
    _ends(machine)
    machine._ask(MANY + 2, "save", 2)
    _ends(machine)
