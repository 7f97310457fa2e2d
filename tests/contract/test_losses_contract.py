"""What the losses of training engines come to, against formulas written out here.

The gradient of a loss is held against weighted cross-entropy: weights that are minus the derivative
of the loss by each log-prob must give the same gradient. So any loss of a client's own can be had.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from drive import ADAM, datum, drain, learn, score

from plait.core.errors import RequestError
from plait.core.ids import OpId, RunId
from plait.core.losses import LOSSES
from plait.core.operations import ForwardBackward
from plait.core.runs import LoraSpec

A = RunId("a")
N = 7
ADVANTAGES = ((1.0, -2.0, 0.5, 1.5, -1.0, 2.0, -0.5), (-1.0, 1.0, 0.25, -0.5, 2.0, 1.0, 3.0))
OFF = (0.4, -0.3, 0.05, 0.6, -0.1, 0.15, -0.5)
"""By how much the sampler's log-probs differ from the trained policy's; some ratios are clipped."""
WEIGHTS = (1.0, 0.5, 2.0, 1.0, 0.0, 1.0, 0.25)
MASK = (1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0)

Row = Sequence[float]
Formula = Callable[[Row, Row, Row, Row], list[float]]
"""Terms of one sequence from the log-probs to differentiate by and as they are, the sampler's, and
the advantages."""


def clipped(ratios: Row, advantages: Row) -> list[float]:
    bounded = [min(max(r, 0.8), 1.2) for r in ratios]
    triples = zip(ratios, bounded, advantages, strict=True)
    return [-min(r * a, b * a) for r, b, a in triples]


def ratios(p: Row, q: Row) -> list[float]:
    return [math.exp(x - y) for x, y in zip(p, q, strict=True)]


def importance_sampling(p: Row, now: Row, q: Row, advantages: Row) -> list[float]:
    return [-r * a for r, a in zip(ratios(p, q), advantages, strict=True)]


def ppo(p: Row, now: Row, q: Row, advantages: Row) -> list[float]:
    return clipped(ratios(p, q), advantages)


def cispo(p: Row, now: Row, q: Row, advantages: Row) -> list[float]:
    kept = [min(max(r, 0.8), 1.2) for r in ratios(now, q)]
    return [-k * x * a for k, x, a in zip(kept, p, advantages, strict=True)]


def dro(p: Row, now: Row, q: Row, advantages: Row) -> list[float]:
    rows = zip(p, q, advantages, strict=True)
    return [-(x * a - 0.5 * 0.3 * (x - y) ** 2) for x, y, a in rows]


def gspo(p: Row, now: Row, q: Row, advantages: Row, members: Row = (1.0,) * N) -> list[float]:
    rows = zip(now, q, members, strict=True)
    mean = sum((x - y) * m for x, y, m in rows) / sum(members)
    return clipped([math.exp(mean + x - y) for x, y in zip(p, now, strict=True)], advantages)


def gspo_masked(p: Row, now: Row, q: Row, advantages: Row) -> list[float]:
    return gspo(p, now, q, advantages, MASK)


def stable_reinforce(p: Row, now: Row, q: Row, advantages: Row) -> list[float]:
    kept = [min(max(r, 0.8), 1.2) for r in ratios(now, q)]
    rows = zip(kept, p, q, advantages, strict=True)
    return [-k * x * a + 0.3 * (math.exp(y - x) - (y - x) - 1) for k, x, y, a in rows]


CLIPS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
CASES: dict[str, tuple[str, dict[str, float], Formula]] = {
    "importance_sampling": ("importance_sampling", {}, importance_sampling),
    "ppo": ("ppo", {}, ppo),
    "cispo": ("cispo", {}, cispo),
    "dro": ("dro", {"beta": 0.3}, dro),
    "gspo": ("gspo", {}, gspo),
    "gspo with a mask": ("gspo", {}, gspo_masked),
    "stable_reinforce": ("stable_reinforce", {**CLIPS, "kl_coeff": 0.3}, stable_reinforce),
}


def made(kit):
    """An engine whose run has learned a little, so that every part of its adapter matters."""
    engine = kit.train()
    engine.create(A, LoraSpec(rank=4, seed=1))
    learn(engine, A, b"xyxyxyxy")
    return engine


def slopes(formula: Callable[[Row], list[float]], now: Row, step: float = 1e-6) -> list[float]:
    """The derivative of the sum of terms by each log-prob."""
    out = []
    for i in range(len(now)):
        up, down = ([x + d * (i == j) for j, x in enumerate(now)] for d in (step, -step))
        out.append((sum(formula(up)) - sum(formula(down))) / (2 * step))
    return out


@pytest.mark.parametrize("case", CASES)
def test_a_loss_and_its_gradient_are_the_formulas(kit, case: str) -> None:
    name, config, formula = CASES[case]
    engine, other = made(kit), made(kit)
    texts = (b"abcdefgh", b"aaaabbbb")
    now = drain(engine.forward(A, [datum(text) for text in texts], adapter=True)).logprobs
    data, equal, total = [], [], 0.0
    for text, row, advantages in zip(texts, now, ADVANTAGES, strict=True):
        q = [x - off for x, off in zip(row, OFF, strict=True)]

        def weighted(p: Row, row=row, q=q, advantages=advantages) -> list[float]:
            terms = formula(p, row, q, advantages)
            return [t * w for t, w in zip(terms, WEIGHTS, strict=True)]

        mask = {"sequence_ratio_mask": MASK} if "mask" in case else {}
        inputs = {"logprobs": q, "advantages": advantages, "weights": WEIGHTS, **mask}
        data.append(datum(text, **inputs))
        equal.append(datum(text, weights=[-s for s in slopes(weighted, row)]))
        total += sum(weighted(row))
    result = drain(engine.forward_backward(A, data, name, config))
    assert result.metrics["loss:sum"] == pytest.approx(total, rel=1e-4, abs=1e-4)
    assert result.metrics["tokens:sum"] == 2 * N
    drain(other.forward_backward(A, equal, "cross_entropy", {}))
    norms = [e.optim_step(A, ADAM).metrics["grad_norm:mean"] for e in (engine, other)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    assert norms[0] > 0
    assert score(engine, A) == pytest.approx(score(other, A), rel=1e-3)


SOFT = tuple((x, x + 1, 7) for x in b"bcdefgh")
SOFT_WEIGHTS = tuple((0.5, -0.25 * (i + 1), 0.1 * i) for i in range(N))


def soft(**changed):
    wanted = replace(datum(), target_tokens=SOFT, inputs={"weights": SOFT_WEIGHTS})
    return replace(wanted, **changed)


def test_soft_targets_are_as_many_hard_ones(kit) -> None:
    one, many = made(kit), made(kit)
    columns = [
        replace(
            datum(weights=[row[k] for row in SOFT_WEIGHTS]), target_tokens=[row[k] for row in SOFT]
        )
        for k in range(3)
    ]
    now = drain(many.forward(A, columns, adapter=True)).logprobs
    scored = drain(one.forward(A, [soft()], adapter=True))
    assert scored.logprobs[0] == pytest.approx(
        [now[k][i] for i in range(N) for k in range(3)], abs=1e-4
    )
    assert scored.metrics["tokens:sum"] == 3 * N
    results = [drain(one.forward_backward(A, [soft()], "cross_entropy", {}))]
    results.append(drain(many.forward_backward(A, columns, "cross_entropy", {})))
    losses = [result.metrics["loss:sum"] for result in results]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4, abs=1e-4)
    assert results[0].metrics["tokens:sum"] == results[1].metrics["tokens:sum"] == 3 * N
    norms = [engine.optim_step(A, ADAM).metrics["grad_norm:mean"] for engine in (one, many)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert score(one, A) == pytest.approx(score(many, A), abs=1e-3)


def test_soft_and_hard_targets_go_together(kit) -> None:
    engine, apart = made(kit), made(kit)
    pair = [soft(), datum(weights=WEIGHTS)]
    together = drain(engine.forward_backward(A, pair, "cross_entropy", {}))
    assert [len(row) for row in together.logprobs] == [3 * N, N]
    alone = [drain(apart.forward_backward(A, [d], "cross_entropy", {})) for d in pair]
    for got, want in zip(together.logprobs, alone, strict=True):
        assert got == pytest.approx(want.logprobs[0], abs=1e-4)
    norms = [e.optim_step(A, ADAM).metrics["grad_norm:mean"] for e in (engine, apart)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_runs_of_soft_and_hard_targets_share_a_pass(kit) -> None:
    other = RunId("b")
    sampled = {"logprobs": (-5.0,) * N, "advantages": ADVANTAGES[0]}
    wanted = {
        A: ([soft(), datum(weights=WEIGHTS)], "cross_entropy", {}),
        other: ([datum(b"xyxyxyxy", **sampled)], "dro", {"beta": 0.3}),
    }
    shared, alone = made(kit), made(kit)
    for engine in (shared, alone):
        engine.create(other, LoraSpec(rank=8, seed=2))
    ops = [
        ForwardBackward(
            op_id=OpId(run), run_id=run, seq=1, data=tuple(data), loss=loss, loss_config=config
        )
        for run, (data, loss, config) in wanted.items()
    ]
    together = drain(shared.forward_backward_many(ops))
    for (run, asked), got in zip(wanted.items(), together, strict=True):
        want = drain(alone.forward_backward(run, *asked))
        for ours, theirs in zip(got.logprobs, want.logprobs, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4)
        assert got.metrics == pytest.approx(want.metrics, rel=1e-4, abs=1e-4)
        norms = [e.optim_step(run, ADAM).metrics["grad_norm:mean"] for e in (shared, alone)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-4)


SAMPLED = {"logprobs": (-1.0,) * N, "advantages": (1.0,) * N}
REFUSED = {
    "unknown loss": ([datum()], "pop", {}, ", ".join(LOSSES)),
    "unknown option": ([datum(**SAMPLED)], "ppo", {"clip": 0.2}, "clip_low_threshold"),
    "negative beta": ([datum(**SAMPLED)], "dro", {"beta": -1.0}, "0 or more"),
    "no beta": ([datum(**SAMPLED)], "dro", {}, "needs the option 'beta'"),
    "clips crossed": ([datum(**SAMPLED)], "gspo", {"clip_low_threshold": 2.0}, "is above"),
    "missing input": ([datum()], "cispo", {}, "logprobs"),
    "unknown input": ([datum(rewards=(1.0,) * N)], "cross_entropy", {}, "weights, advantages"),
    "mask of halves": (
        [datum(**SAMPLED, sequence_ratio_mask=(0.5,) * N)],
        "gspo",
        {},
        "must be 0 or 1",
    ),
    "mask of nothing": (
        [datum(**SAMPLED, sequence_ratio_mask=(0.0,) * N)],
        "gspo",
        {},
        "1 at a scored position",
    ),
    "soft targets without weights": ([soft(inputs={})], "cross_entropy", {}, "weights"),
    "soft targets of another loss": (
        [soft(inputs=SAMPLED)],
        "ppo",
        {},
        "several targets per position",
    ),
    "one weight for three targets": (
        [soft(inputs={"weights": (1.0,) * N})],
        "cross_entropy",
        {},
        "weights",
    ),
    "ragged targets": ([soft(target_tokens=((1, 2), *SOFT[1:]))], "cross_entropy", {}, "position"),
    "soft id out of range": (
        [soft(target_tokens=((1, 2, 10**9), *SOFT[1:]))],
        "cross_entropy",
        {},
        "1000000000",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_and_the_run_lives_on(kit, case: str) -> None:
    data, loss, config, why = REFUSED[case]
    calm, engine = made(kit), made(kit)
    for each in (calm, engine):
        drain(each.forward_backward(A, [datum(b"aaaabbbb")], "cross_entropy", {}))
    with pytest.raises(RequestError, match=why):
        drain(engine.forward_backward(A, data, loss, config))
    for each in (calm, engine):
        each.optim_step(A, ADAM)
        learn(each, A, b"ccccdddd")
    assert score(engine, A) == score(calm, A)
