from pathlib import Path

import pytest
import torch
from random_models import private_cache, random_model

from plait.adapters.peft import read_adapter, write_adapter
from plait.core.errors import CapacityError, EngineError, ModelError, NotFinite, RequestError
from plait.core.ids import OpId, RunId
from plait.core.operations import Sample, SampleResult, SamplingParams, StopReason
from plait.core.plan import Keep
from plait.core.runs import LoraSpec
from plait.engines.protocol import ForwardStep
from plait.engines.torch import parts as parts_module
from plait.engines.torch.arch import GROUPS, group_sizes, read_arch
from plait.engines.torch.rollout import TorchRollout

A, B, SICK = RunId("a"), RunId("b"), RunId("sick")
PROMPT = tuple(b"The quick brown fox")
NOISE = 2e-5


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model"))


def lora(model: Path, folder: Path, *, rank: int, seed: int, fill: float | None = None) -> str:
    """A random adapter on all linear layers, strong enough to change what is drawn."""
    from plait.adapters.peft import Adapter

    arch, generator = read_arch(model), torch.Generator().manual_seed(seed)
    pairs = {}
    for group, modules in GROUPS.items():
        n_in, outs = group_sizes(arch)[group]
        for module, n_out in zip(modules, outs, strict=True):
            for i in range(arch.n_layers):
                a = torch.randn(rank, n_in, generator=generator) * 0.2
                b = torch.randn(n_out, rank, generator=generator) * 0.1
                pairs[i, module] = (a, b if fill is None else torch.full_like(b, fill))
    folder.mkdir(parents=True, exist_ok=True)
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


def engine(model: Path, adapters: dict[RunId, str] | None = None, **options) -> TorchRollout:
    with private_cache(model):
        made = TorchRollout(model, **{"n_blocks": 256, "block_size": 4} | options)
    for run_id, path in (adapters or {}).items():
        made.load_adapter(run_id, 1, path)
    return made


def op(name: str, run_id: RunId = A, version: int | None = None, **options) -> Sample:
    fields = {k: options.pop(k) for k in ("prompt", "n", "first_index") if k in options}
    return Sample(
        op_id=OpId(name),
        run_id=run_id,
        version=version,
        params=SamplingParams(**{"max_tokens": 16, "seed": 5} | options),
        **{"prompt": PROMPT} | fields,
    )


def finish(e: TorchRollout, *ops: Sample) -> tuple[dict[str, SampleResult], list[ForwardStep]]:
    for o in ops:
        e.add(o)
    results, steps = {}, []
    while e.has_work():
        steps.append(e.step())
        results.update(steps[-1].finished)
    return results, steps


def assert_close(got: SampleResult, want: SampleResult) -> None:
    for a, b in zip(got.samples, want.samples, strict=True):
        assert a.tokens == b.tokens
        assert a.logprobs == pytest.approx(b.logprobs, abs=NOISE)


def crowd() -> list[Sample]:
    return [
        op("a", A, 1, n=3),
        op("b", B, 1, n=3, max_tokens=20),
        op("base", A, None, n=2),
        op("long", B, 1, prompt=PROMPT * 3, max_tokens=9),
        op("greedy", A, 1, temperature=0.0),
        op("short", B, 1, prompt=PROMPT[:1]),
    ]


def test_mixed_ranks_in_one_batch_equal_each_alone(model, adapters) -> None:
    together, steps = finish(engine(model, adapters), *crowd())
    assert any(len(s.tokens_by_run) == 2 and s.n_running > 4 for s in steps)
    for o in crowd():
        assert_close(together[o.op_id], finish(engine(model, adapters), o)[0][o.op_id])
    tokens = [together[k].samples[0].tokens for k in ("a", "b", "base")]
    assert len(set(tokens)) == 3


@pytest.mark.parametrize("tokens", [8, 17, 512])
def test_chunked_prefill_equals_whole(model, adapters, tokens: int) -> None:
    want, _ = finish(engine(model, adapters), *crowd())
    got, steps = finish(engine(model, adapters, max_batch_tokens=tokens, max_seqs=8), *crowd())
    assert max(s.n_tokens for s in steps) <= tokens
    for name, result in want.items():
        assert_close(got[name], result)


def test_control_can_be_taken_between_layers(model) -> None:
    calls: list[str] = []
    e = engine(model, on_layer=lambda: calls.append(""))
    _, steps = finish(e, op("a"))
    assert len(calls) == e.shape.n_layers * sum(s.n_tokens > 0 for s in steps)


def test_prefix_cache_saves_prefill_and_changes_nothing(model, adapters) -> None:
    runs = {}
    for on in (True, False):
        e = engine(model, adapters, prefix_cache=on)
        first, steps_1 = finish(e, op("one", A, 1, prompt=PROMPT * 2))
        said = first["one"].samples[0].tokens
        second, steps_2 = finish(e, op("two", A, 1, prompt=PROMPT * 2 + said + PROMPT[:3], n=2))
        runs[on] = first | second, sum(s.n_prefill_tokens for s in steps_1 + steps_2)
    for name in ("one", "two"):
        assert_close(runs[True][0][name], runs[False][0][name])
    whole = len(PROMPT) * 2 + 16
    assert runs[True][1] < runs[False][1] - whole + 8


@pytest.mark.parametrize(("keep", "most"), [(Keep.KEEP, 8), (None, 60), (Keep.DROP, 60)])
def test_a_sample_that_is_kept_finds_its_cache_again(model, keep, most: int) -> None:
    e = engine(model, n_blocks=40)
    first, _ = finish(e, op("one", prompt=PROMPT * 2))
    said = (*PROMPT * 2, *first["one"].samples[0].tokens)
    if keep:
        e.mark_prefix(A, None, said, keep)
    others = [finish(e, op(f"{i}", prompt=(i, *PROMPT), seed=i))[1] for i in range(9)]
    assert sum(s.n_evicted for steps in others for s in steps) > 30
    assert others[-1][-1].kv_blocks_idle > 20
    again, steps = finish(e, op("two", prompt=(*said, *PROMPT[:3])))
    n_prefill = sum(s.n_prefill_tokens for s in steps)
    assert n_prefill <= most
    assert n_prefill > 40 or keep is Keep.KEEP
    want, _ = finish(engine(model), op("two", prompt=(*said, *PROMPT[:3])))
    assert_close(again["two"], want["two"])


def test_preemption_changes_nothing(model, adapters) -> None:
    want, _ = finish(engine(model, adapters), *crowd())
    got, steps = finish(engine(model, adapters, n_blocks=18), *crowd())
    assert sum(s.n_preempted for s in steps) > 2
    for name, result in want.items():
        assert_close(got[name], result)


@pytest.mark.parametrize(("part_cost", "shared_cost"), [(0, 10**9), (10**9, 1), (0, 1)])
def test_how_rows_are_put_together_for_attention_changes_nothing(
    model, adapters, monkeypatch, part_cost: int, shared_cost: int
) -> None:
    ops = [*crowd(), op("group", A, 1, n=8, prompt=PROMPT * 2, seed=9)]
    monkeypatch.setattr(parts_module, "PART_COST_BYTES", 10**9)
    monkeypatch.setattr(parts_module, "SHARED_COST_BYTES", 10**9)
    want, _ = finish(engine(model, adapters), *ops)
    monkeypatch.setattr(parts_module, "PART_COST_BYTES", part_cost)
    monkeypatch.setattr(parts_module, "SHARED_COST_BYTES", shared_cost)
    got, _ = finish(engine(model, adapters), *ops)
    for name, result in want.items():
        assert_close(got[name], result)


def test_resizing_while_samples_run_changes_nothing(model, adapters) -> None:
    want, _ = finish(engine(model, adapters), *crowd())
    e = engine(model, adapters, n_blocks=64)
    for o in crowd():
        e.add(o)
    got: dict[str, SampleResult] = {}
    for i in range(200):
        if e.has_work():
            got.update(e.step().finished)
        if i in (3, 6, 9, 12):
            e.resize_kv({3: 30, 6: 90, 9: 18, 12: 64}[i])
    for name, result in want.items():
        assert_close(got[name], result)


def test_a_sick_adapter_ends_its_own_samples_only(model, adapters) -> None:
    want, _ = finish(engine(model, adapters, n_blocks=40), *crowd())
    e = engine(model, adapters, n_blocks=40)
    for i in range(6):
        e.add(op(f"sick{i}", SICK, 1, n=2, prompt=(*PROMPT, i)))
    got, steps = finish(e, *crowd())
    failed = dict(f for s in steps for f in s.failed)
    assert set(failed) == {f"sick{i}" for i in range(6)}
    assert all(isinstance(e, NotFinite) and "not finite" in str(e) for e in failed.values())
    for name, result in want.items():
        assert_close(got[name], result)
    # What the sick samples leave behind in the cache must not reach anybody either.
    again, _ = finish(e, *crowd())
    for name, result in want.items():
        assert_close(again[name], result)


def test_blocks_given_back_in_the_middle_of_a_sick_prefill_are_clean(model, adapters) -> None:
    want, _ = finish(engine(model), op("x", A, n=4))
    e = engine(model, adapters, n_blocks=24, max_batch_tokens=8, max_seqs=4)
    e.add(op("sick", SICK, 1, prompt=PROMPT * 4))
    for _ in range(9):
        assert not e.step().failed
    e.abort([OpId("sick")])
    got, _ = finish(e, op("x", A, n=4))
    assert_close(got["x"], want["x"])


def test_stop_strings_span_tokens(model) -> None:
    (free,) = finish(engine(model), op("x", max_tokens=40, seed=3))[0]["x"].samples
    printable = [i for i, t in enumerate(free.tokens) if 33 <= t < 127]
    i = next(i for i in printable if i > 4 and free.tokens[i + 1] < 127)
    stop = bytes(free.tokens[i : i + 2]).decode()
    (ended,) = finish(engine(model), op("x", max_tokens=40, seed=3, stop=("zzzz", stop)))[0][
        "x"
    ].samples
    text = bytes(min(t, 255) for t in free.tokens)
    assert ended.tokens == free.tokens[: text.find(stop.encode()) + 2]
    assert ended.stop_reason is StopReason.STOP


def test_the_models_end_token_ends_a_sample_unless_ignored(model, tmp_path: Path) -> None:
    (free,) = finish(engine(model), op("x", seed=3))[0]["x"].samples
    eos = free.tokens[6]
    ending = engine(random_model(tmp_path / "with-eos", eos=eos))
    results, _ = finish(ending, op("x", seed=3), op("y", seed=3, ignore_eos=True))
    end = free.tokens.index(eos) + 1
    assert results["x"].samples[0].tokens == free.tokens[:end]
    assert results["x"].samples[0].stop_reason is StopReason.STOP
    assert results["y"].samples[0].tokens == free.tokens


def test_samples_of_one_seed_differ_and_an_index_alone_is_the_same(model) -> None:
    group = finish(engine(model), op("x", n=6))[0]["x"].samples
    assert len({s.tokens for s in group}) == 6
    alone = finish(engine(model), op("y", n=2, first_index=3))[0]["y"].samples
    assert [s.tokens for s in alone] == [s.tokens for s in group[3:5]]


def test_blocks_are_counted_by_run_and_all_come_back(model, adapters) -> None:
    e = engine(model, adapters)
    _, steps = finish(e, op("x", A, 1, n=4, prompt=PROMPT[:8]), op("y", B, 1))
    first, second = steps[0], steps[1]
    assert first.kv_blocks_by_run == {A: 2, B: 5}
    assert second.kv_blocks_by_run == {A: 2 + 4, B: 5}
    assert second.kv_blocks_used == 11
    assert steps[-1].kv_blocks_used == 0


def test_an_adapter_is_dropped_with_its_last_sample(model, adapters) -> None:
    e = engine(model, adapters)
    e.add(op("x", A, 1))
    e.step()
    e.drop_adapter(A, 1)
    with pytest.raises(RequestError, match="not loaded"):
        e.add(op("y", A, 1))
    assert set(finish(e)[0]) == {"x"}
    assert (A, 1) not in e._adapters


def test_a_version_does_not_change_under_its_samples(model, adapters) -> None:
    e = engine(model, adapters)
    want, _ = finish(e, op("x", A, 1))
    e.add(op("y", A, 1))
    with pytest.raises(ModelError, match="versions do not change"):
        e.load_adapter(A, 1, adapters[B])
    e.load_adapter(A, 1, adapters[A])
    assert_close(finish(e)[0]["y"], want["x"])
    # With no sample left another file may take its place; nothing cached serves it.
    e.load_adapter(A, 1, adapters[B])
    other, _ = finish(engine(model, adapters), op("x", B, 1))
    assert_close(finish(e, op("z", A, 1))[0]["z"], other["x"])


def test_an_adapter_of_another_model_is_refused(model, adapters, tmp_path: Path) -> None:
    foreign = random_model(tmp_path / "model", "qwen3")
    path = lora(foreign, tmp_path / "adapter", rank=2, seed=0)
    with pytest.raises(ModelError, match="the base model needs"):
        engine(model).load_adapter(A, 1, path)


def test_an_adapter_file_is_read_as_written(model, adapters) -> None:
    assert read_adapter(adapters[B], n_layers=2).spec.rank == 24


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"prompt": ()}, RequestError, "empty prompt"),
        ({"prompt": (1, 264)}, RequestError, "id 264, outside 0 … 263"),
        ({"prompt": (-1,)}, RequestError, "id -1"),
        ({"n": 0}, RequestError, "n must be"),
        ({"first_index": -1}, RequestError, "index -1"),
        ({"max_tokens": 0}, RequestError, "max_tokens"),
        ({"temperature": -0.1}, RequestError, "temperature"),
        ({"temperature": float("nan")}, RequestError, "temperature"),
        ({"top_p": 0.0}, RequestError, "top_p"),
        ({"top_p": 1.5}, RequestError, "top_p"),
        ({"top_k": -1}, RequestError, "top_k"),
        ({"stop": ("",)}, RequestError, "stop string"),
        ({"stop_tokens": (999,)}, RequestError, "stop_tokens holds id 999"),
        ({"max_tokens": 494}, CapacityError, "context of 512"),
        ({"prompt": (1,) * 150, "max_tokens": 110}, CapacityError, "KV cache holds 256"),
    ],
)
def test_what_cannot_be_is_refused_and_the_engine_lives_on(model, options, error, says) -> None:
    e = engine(model, n_blocks=64)
    with pytest.raises(error, match=says):
        e.add(op("x", **options))
    assert not e.has_work()
    assert set(finish(e, op("x"))[0]) == {"x"}


def test_an_op_id_is_given_once(model) -> None:
    e = engine(model)
    e.add(op("x"))
    with pytest.raises(RequestError, match="queued already"):
        e.add(op("x"))


def test_a_failed_step_loses_no_sample(model, monkeypatch) -> None:
    want, _ = finish(engine(model), op("x", n=3))
    e = engine(model)
    e.add(op("x", n=3))
    e.step()
    e.step()

    def fail(*_, **__):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as m:
        m.setattr(e._model, "hidden", fail)
        with pytest.raises(EngineError, match="out of memory"):
            e.step()
    assert_close(finish(e)[0]["x"], want["x"])
