"""Decode over static buffers gives what the ordinary way gives, and forgets what has moved.

On a CPU nothing is recorded: the buffers, the filling and the bookkeeping are tested here, the
recording in ``tests/gpu``.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from random_models import private_cache, random_model

from plait.adapters.peft import Adapter, write_adapter
from plait.core.ids import OpId, RunId
from plait.core.operations import Sample, SampleResult, SamplingParams
from plait.core.runs import LoraSpec
from plait.engines.torch import graphs as graphs_module
from plait.engines.torch import replays
from plait.engines.torch.arch import GROUPS, group_sizes, read_arch
from plait.engines.torch.rollout import TorchRollout

pytestmark = pytest.mark.usefixtures("one_thread")
A, B, SICK = RunId("a"), RunId("b"), RunId("sick")
PROMPT = tuple(b"The quick brown fox")
NOISE = 2e-5


@pytest.fixture(scope="module", params=["llama-tied-bias", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model"), request.param)


def lora(model: Path, folder: Path, *, rank: int, seed: int, fill: float | None = None) -> str:
    arch, g = read_arch(model), torch.Generator().manual_seed(seed)
    pairs = {}
    for group, modules in GROUPS.items():
        n_in, outs = group_sizes(arch)[group]
        for module, n_out in zip(modules, outs, strict=True):
            for i in range(arch.n_layers):
                b = torch.randn(n_out, rank, generator=g) * 0.1
                a = torch.randn(rank, n_in, generator=g) * 0.2
                pairs[i, module] = (a, b if fill is None else torch.full_like(b, fill))
    folder.mkdir()
    write_adapter(folder, Adapter(spec=LoraSpec(rank=rank), pairs=pairs), base_model=str(model))
    return str(folder)


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[RunId, str]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        A: lora(model, root / "a", rank=4, seed=1),
        B: lora(model, root / "b", rank=24, seed=2),
        SICK: lora(model, root / "sick", rank=8, seed=3, fill=float("nan")),
    }


def engine(model: Path, adapters: dict[RunId, str], **options) -> TorchRollout:
    with private_cache(model):
        made = TorchRollout(model, **{"n_blocks": 256, "block_size": 4, "graphs": True} | options)
    for run_id, path in adapters.items():
        made.load_adapter(run_id, 1, path)
    return made


def op(name: str, run_id: RunId = A, version: int | None = 1, **options) -> Sample:
    fields = {k: options.pop(k) for k in ("prompt", "n", "topk_logprobs") if k in options}
    params = SamplingParams(**{"max_tokens": 16, "seed": 5} | options)
    return Sample(
        op_id=OpId(name),
        run_id=run_id,
        version=version,
        params=params,
        **{"prompt": PROMPT} | fields,
    )


def crowd() -> list[Sample]:
    return [
        op("a", n=3),
        op("b", B, n=3, max_tokens=20, topk_logprobs=2),
        op("base", A, None, n=2),
        op("long", B, prompt=PROMPT * 3, max_tokens=9),
        op("greedy", temperature=0.0),
        op("short", B, prompt=PROMPT[:1], top_p=0.8),
    ]


class Recorder:
    """In the place of CUDA's recording: addresses are remembered and must be the same later."""

    def __init__(self) -> None:
        self.n_recorded = self.n_replayed = 0

    def __call__(self, compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        frame = compute.__self__  # type: ignore[attr-defined]
        before = self._addresses(frame)
        self.n_recorded += 1

        def replay() -> torch.Tensor:
            assert self._addresses(frame) == before
            self.n_replayed += 1
            return compute()

        return replay

    def _addresses(self, frame) -> list[int]:
        parts = frame._parts
        tensors = [frame._numbers_BX, *parts.kv._layers]
        if frame._key.columns:
            tensors += [parts.stack.owner_S, *(s.a_IKS for s in parts.stack.layers.values())]
        return [t.data_ptr() for t in tensors]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr("plait.engines.torch.own.make_record", lambda device: made)
    return made


def finish(e: TorchRollout, *ops: Sample) -> dict[str, SampleResult]:
    for o in ops:
        e.add(o)
    results, failed = {}, {}
    while e.has_work():
        step = e.step()
        results.update(step.finished)
        failed.update(step.failed)
    return results | failed


def assert_close(got: SampleResult, want: SampleResult) -> None:
    for a, b in zip(got.samples, want.samples, strict=True):
        assert a.tokens == b.tokens
        assert a.logprobs == pytest.approx(b.logprobs, abs=NOISE)
        assert a.stop_reason == b.stop_reason


def without_sick(adapters: dict[RunId, str]) -> dict[RunId, str]:
    return {k: v for k, v in adapters.items() if k != SICK}


def test_static_buffers_give_what_the_eager_way_gives(model, adapters, recorder) -> None:
    want = finish(engine(model, adapters, graphs=False), *crowd())
    assert recorder.n_replayed == 0
    got = finish(engine(model, adapters), *crowd())
    for o in crowd():
        assert_close(got[o.op_id], want[o.op_id])
    assert recorder.n_replayed >= 18, "all steps but those with a prefill"
    assert 1 < recorder.n_recorded < recorder.n_replayed
    assert len({got[k].samples[0].tokens for k in ("a", "b", "base")}) == 3


def test_bf16_too(model, adapters, recorder) -> None:
    options = {"dtype": torch.bfloat16}
    want, got = (
        finish(engine(model, adapters, graphs=g, **options), op("a", n=3, temperature=0.0))["a"]
        for g in (False, True)
    )
    assert recorder.n_replayed
    firsts = [(s.tokens[0], s.logprobs[0]) for r in (want, got) for s in r.samples]
    assert len(set(firsts)) == 1, "the prefill's, which goes one way in both"
    for a, b in zip(want.samples, got.samples, strict=True):
        pairs = zip(a.tokens, b.tokens, strict=True)
        same = next((i for i, (x, y) in enumerate(pairs) if x != y), len(a.tokens))
        assert same >= 1
        assert a.logprobs[:same] == pytest.approx(b.logprobs[:same], abs=0.15)


def test_versions_come_and_go_over_the_same_graphs(model, adapters, recorder) -> None:
    e = engine(model, {A: adapters[A]})
    finish(e, op("first"))
    n = recorder.n_recorded
    e.load_adapter(A, 2, adapters[B])  # the stack grows no more: 4 + 24 of 32 columns
    e.drop_adapter(A, 1)
    got = finish(e, op("second", version=2))["second"]
    want = finish(engine(model, adapters, graphs=False), op("second", B))["second"]
    assert_close(got, want)
    assert recorder.n_recorded == n


def test_graphs_are_forgotten_when_memory_moves(model, adapters, recorder) -> None:
    e = engine(model, {A: adapters[A]})
    e.add(op("a", max_tokens=24))
    for _ in range(8):
        e.step()
    n = recorder.n_recorded
    e.resize_kv(128)
    for _ in range(4):  # of the same sizes as the step before
        e.step()
    assert recorder.n_recorded == n + 1
    e.load_adapter(B, 1, adapters[B])
    e.load_adapter(B, 2, adapters[B])  # 52 of 32 columns: a new stack
    assert not e._graphs._kept
    results = finish(e)
    want = finish(engine(model, adapters, graphs=False), op("a", max_tokens=24))
    assert_close(results["a"], want["a"])


def test_a_shorter_row_reads_nothing_of_a_longer_one(model, adapters, recorder) -> None:
    """Somebody else's blocks by now, whose NaN would come through the mask."""
    e = engine(model, {})
    finish(e, op("long", version=None, prompt=PROMPT[:14] * 2, max_tokens=5, ignore_eos=True))
    e.add(op("short", version=None, prompt=(7,) * 25, max_tokens=3, ignore_eos=True))
    e.step()
    e.step()
    (running,) = e._scheduler.running
    (frame,) = [frame for key, (frame, _) in e._graphs._kept.items() if key.blocks == 8]
    assert frame._host_BX[0, 4:].tolist() == [*running.blocks, e._kv.null_block]


def test_only_so_many_are_kept(model, adapters, recorder, monkeypatch) -> None:
    monkeypatch.setattr(graphs_module, "MAX_GRAPHS", 2)
    e = engine(model, without_sick(adapters))
    want = finish(engine(model, adapters, graphs=False), *crowd())
    got = finish(e, *crowd())
    assert len(e._graphs._kept) == 2
    for o in crowd():
        assert_close(got[o.op_id], want[o.op_id])


def test_a_sick_adapter_goes_the_eager_way_and_stays_alone(model, adapters, recorder) -> None:
    e = engine(model, adapters)
    got = finish(e, op("sick", SICK), op("a"))
    assert "not finite" in str(got["sick"])
    assert_close(got["a"], finish(engine(model, adapters, graphs=False), op("a"))["a"])


def test_steps_with_much_to_read_go_the_eager_way(model, adapters, recorder, monkeypatch) -> None:
    monkeypatch.setattr(replays, "MAX_GATHER_BYTES", 1)
    finish(engine(model, adapters), *crowd())
    assert recorder.n_replayed == 0


def test_if_recording_fails_the_engine_goes_on_eagerly(model, adapters, monkeypatch) -> None:
    calls = []

    def failing(compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        calls.append(compute())  # as the run before the recording does
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr("plait.engines.torch.own.make_record", lambda device: failing)
    want = finish(engine(model, adapters, graphs=False), *crowd())
    with pytest.warns(UserWarning, match="not recorded: operation not permitted"):
        got = finish(engine(model, adapters), *crowd())
    assert len(calls) == 1
    for o in crowd():
        assert_close(got[o.op_id], want[o.op_id])


def test_a_small_cache_with_preemption(model, adapters, recorder) -> None:
    want = finish(engine(model, adapters, graphs=False), *crowd())
    got = finish(engine(model, adapters, n_blocks=26, max_batch_tokens=16, max_seqs=6), *crowd())
    assert recorder.n_replayed
    for o in crowd():
        assert_close(got[o.op_id], want[o.op_id])
