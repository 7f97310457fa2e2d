import pytest

from plait.core.errors import CapacityError
from plait.core.ids import OpId, RunId
from plait.core.operations import Sample, SamplingParams
from plait.engines.torch.blocks import Blocks
from plait.engines.torch.schedule import Plan, Scheduler
from plait.engines.torch.sequence import Request, Sequence

SIZE = 4


class Desk:
    """A scheduler whose forward steps draw token 7."""

    def __init__(self, n_blocks: int = 64, *, max_seqs: int = 8, tokens: int = 32) -> None:
        self.blocks = Blocks(n_blocks, block_size=SIZE)
        self.scheduler = Scheduler(self.blocks, max_seqs=max_seqs, max_batch_tokens=tokens)
        self._n = 0

    def add(self, run: str, prompt: list[int], *, max_tokens: int = 8, group: int = 0) -> Sequence:
        self._n += 1
        op = Sample(
            op_id=OpId(f"{run}{self._n}"),
            run_id=RunId(run),
            version=1,
            prompt=tuple(prompt),
            params=SamplingParams(max_tokens=max_tokens),
        )
        sequence = Sequence(
            request=Request(op=op, policy=(RunId(run), 1), ends=frozenset()),
            index=0,
            arrival=self._n,
            group=group or -self._n,
            stream=0,
            tokens=list(prompt),
            n_prompt=len(prompt),
            max_tokens=max_tokens,
            scan=None,
        )
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> Plan:
        plan = self.scheduler.plan()
        self.scheduler.advance(plan)
        drawing = list(plan.decodes)
        for chunk in plan.chunks:
            if chunk.draws:
                drawing += [chunk.sequence, *plan.forks.get(chunk.sequence, ())]
        for s in drawing:
            s.draw(7, -1.0)
            if s.reason is not None:
                self.scheduler.remove(s)
        return plan


def test_a_long_prompt_is_cut_and_decoding_goes_on_beside_it() -> None:
    desk = Desk(tokens=16)
    short = desk.add("a", [1, 2, 3])
    desk.step()
    long = desk.add("a", list(range(40)))
    sizes = []
    while long.n_drawn == 0:
        plan = desk.step()
        assert plan.decodes == [short]
        sizes += [(c.start, c.n, c.draws) for c in plan.chunks]
    assert sizes == [(0, 15, False), (15, 15, False), (30, 10, True)]


def test_a_shared_prompt_is_computed_once_and_its_last_block_copied_on_write() -> None:
    desk = Desk()
    group = [desk.add("a", list(range(6)), group=9) for _ in range(4)]
    plan = desk.step()
    assert [c.n for c in plan.chunks] == [6]
    assert plan.forks == {group[0]: group[1:]}
    assert desk.blocks.n_held == 2
    plan = desk.step()
    assert plan.decodes == group
    assert not plan.chunks
    assert len({source for source, _ in plan.copies}) == 1
    assert len({target for _, target in plan.copies}) == 3
    assert desk.blocks.n_held == 1 + 4


def test_a_whole_last_block_is_not_copied() -> None:
    desk = Desk()
    for _ in range(3):
        desk.add("a", list(range(8)), group=9)
    desk.step()
    plan = desk.step()
    assert plan.copies == []
    assert len(plan.fresh) == 3
    assert desk.blocks.n_held == 2 + 3


def test_equal_prompts_that_come_later_wait_for_the_one_being_computed() -> None:
    desk = Desk(tokens=8)
    leader = desk.add("a", list(range(20)), group=9)
    desk.step()
    follower = desk.add("a", list(range(20)), group=9)
    other = desk.add("a", [5, 5])
    n_follower_tokens = 0
    while not follower.n_drawn:
        plan = desk.step()
        n_follower_tokens += sum(c.n for c in plan.chunks if c.sequence is follower)
    assert n_follower_tokens == 0
    assert leader.n_drawn
    assert other.n_drawn


def test_a_later_turn_computes_only_what_is_new() -> None:
    desk = Desk()
    first = desk.add("a", list(range(10)), max_tokens=5)
    while first.reason is None:
        desk.step()
    desk.add("a", [*first.tokens, 50, 51])
    (chunk,) = desk.step().chunks
    # 14 tokens have been computed (the last one drawn never is): three whole blocks.
    assert (chunk.start, chunk.n) == (12, 5)


def test_the_newest_gives_way_and_keeps_its_tokens() -> None:
    desk = Desk(n_blocks=6, max_seqs=4)
    old = desk.add("a", [1] * 7, max_tokens=17)
    new = desk.add("b", [2] * 7, max_tokens=17)
    n_preempted = 0
    while old.reason is None:
        plan = desk.step()
        assert old in plan.decodes or any(c.sequence is old for c in plan.chunks)
        n_preempted += plan.n_preempted
    assert n_preempted >= 1
    assert 0 < new.n_drawn < 17
    drawn = new.n_drawn
    while new.reason is None:
        desk.step()
    assert new.n_drawn == 17 > drawn
    assert desk.blocks.n_held == 0


def test_nobody_is_admitted_into_the_room_that_others_are_about_to_need() -> None:
    desk = Desk(n_blocks=9, max_seqs=8)
    for i in range(4):
        desk.add("a", [i] * 7)
    desk.step()
    late = desk.add("b", [9])
    assert desk.blocks.n_available >= 1
    desk.step()
    assert late in desk.scheduler.waiting


def test_samples_of_a_paused_run_keep_their_blocks_and_take_no_part() -> None:
    desk = Desk()
    a, b = desk.add("a", [1] * 6), desk.add("b", [2] * 6)
    desk.step()
    desk.scheduler.set_paused(RunId("a"), True)
    held = list(a.blocks)
    assert desk.step().decodes == [b]
    assert a.blocks == held
    desk.scheduler.remove(b)
    assert not desk.scheduler.has_work()
    desk.scheduler.set_paused(RunId("a"), False)
    assert desk.step().decodes == [a]


def test_paused_samples_give_way_first_even_if_they_are_older() -> None:
    desk = Desk(n_blocks=6)
    paused = desk.add("a", [1] * 11, max_tokens=4)
    desk.step()
    desk.scheduler.set_paused(RunId("a"), True)
    active = desk.add("b", [2] * 7, max_tokens=17)
    while active.reason is None:
        desk.step()
    assert not paused.blocks
    assert paused in desk.scheduler.waiting
    desk.scheduler.set_paused(RunId("a"), False)
    while paused.reason is None:
        desk.step()


def test_no_more_than_max_seqs_take_part_also_after_a_pause() -> None:
    desk = Desk(max_seqs=2)
    first = [desk.add("a", [1, i]) for i in range(2)]
    desk.step()
    desk.scheduler.set_paused(RunId("a"), True)
    second = [desk.add("b", [2, i]) for i in range(2)]
    desk.step()
    desk.scheduler.set_paused(RunId("a"), False)
    assert desk.step().decodes == first
    assert all(s.blocks for s in second)


def test_a_preempted_sample_comes_back_before_those_that_came_later() -> None:
    desk = Desk(max_seqs=1)
    first, second = desk.add("a", [1]), desk.add("a", [2])
    desk.step()
    desk.scheduler.preempt_all()
    assert desk.scheduler.waiting == [first, second]


def test_shrinking_keeps_what_fits_and_preempts_the_newest() -> None:
    desk = Desk(n_blocks=32)
    samples = [desk.add("a", [i] * 6, max_tokens=6) for i in range(4)]
    desk.step()
    moves, n_preempted = desk.scheduler.resize(5)
    assert n_preempted == 2
    assert desk.scheduler.running == samples[:2]
    assert all(b < 5 for s in samples[:2] for b in s.blocks)
    assert set(moves.values()) <= set(range(5))
    while desk.scheduler.has_work():
        desk.step()
    assert all(len(s.tokens) == 12 for s in samples)


def test_a_cache_too_small_for_a_sample_is_refused_and_nothing_changes() -> None:
    desk = Desk(n_blocks=32)
    desk.add("a", [1] * 6, max_tokens=11)
    with pytest.raises(CapacityError, match="may need 4"):
        desk.scheduler.resize(3)
    assert desk.blocks.n_blocks == 32
