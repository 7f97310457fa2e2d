"""Adapters of the head in the rollout: several in one batch, some without one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_engine_exact as deterministic
import torch
from random_models import private_cache, random_model
from test_engine_exact import MINE, OTHER, THIRD, data_of, drawn, others, sampler, trainer
from test_trainer_head import pytestmark as peft_warnings
from trainer_support import drain, saved_by_peft

from plait.adapters.peft import WEIGHTS, Adapter, read_adapter, write_adapter
from plait.core.errors import ModelError
from plait.core.ids import OpId, RunId
from plait.core.operations import Sample, SampleResult, SamplingParams
from plait.core.runs import ALL_LINEAR, HEAD, TARGETS, LoraSpec
from plait.engines.torch.arch import head_place, read_arch
from plait.engines.torch.lora import LoraBatch, Pieces, pack_adapter
from plait.engines.torch.rollout import TorchRollout

pytestmark = [*peft_warnings, pytest.mark.usefixtures("one_thread")]

ALL, HEAD_ALONE, BLOCKS = RunId("all"), RunId("head alone"), RunId("blocks")
TARGETS_OF = {ALL: TARGETS, HEAD_ALONE: (HEAD,), BLOCKS: ALL_LINEAR}
RANK_OF = {ALL: 4, HEAD_ALONE: 24, BLOCKS: 8}
PROMPT = tuple(b"The quick brown fox")
NOISE = 2e-5
TOPK = 5


@pytest.fixture(scope="module", params=["llama", "llama-tied-bias"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model") / "model", request.param)


def random_adapter(model: Path, targets: tuple[str, ...], rank: int) -> Adapter:
    """Strong enough to change what is drawn."""
    generator, pairs = torch.Generator().manual_seed(rank), {}
    for site in read_arch(model).sites:
        for module, n_out in site.modules:
            a = torch.randn(rank, site.n_in, generator=generator) * 0.2
            b = torch.randn(n_out, rank, generator=generator) * 0.1
            if module in targets:
                pairs[site.layer, module] = a, b
    return Adapter(spec=LoraSpec(rank=rank, targets=targets), pairs=pairs)


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[RunId, str]:
    paths = {}
    for run_id, targets in TARGETS_OF.items():
        paths[run_id] = str(tmp_path_factory.mktemp("adapter"))
        made = random_adapter(model, targets, RANK_OF[run_id])
        write_adapter(paths[run_id], made, base_model=str(model))
    return paths


def engine(model: Path, adapters: dict[RunId, str], **options: Any) -> TorchRollout:
    with private_cache(model):
        made = TorchRollout(model, **{"n_blocks": 256} | options)
    for run_id, path in adapters.items():
        made.load_adapter(run_id, 1, path)
    return made


def op(name: str, run_id: RunId, version: int | None = 1, **options: Any) -> Sample:
    fields = {k: options.pop(k) for k in ("prompt", "n") if k in options}
    params = SamplingParams(**{"max_tokens": 12, "seed": 5, "ignore_eos": True} | options)
    return Sample(
        op_id=OpId(name),
        run_id=run_id,
        version=version,
        params=params,
        prompt_logprobs=True,
        topk_logprobs=TOPK,
        **{"prompt": PROMPT} | fields,
    )


def crowd() -> list[Sample]:
    return [
        op("all", ALL, n=3),
        op("blocks", BLOCKS, n=2, max_tokens=20),
        op("head", HEAD_ALONE, n=3, prompt=PROMPT[3:]),
        op("base", ALL, None, n=2),
        op("long", HEAD_ALONE, prompt=PROMPT * 3, max_tokens=5),
        op("greedy", ALL, temperature=0.0),
    ]


def finish(e: TorchRollout, *ops: Sample) -> dict[str, SampleResult]:
    for o in ops:
        e.add(o)
    results: dict[str, SampleResult] = {}
    while e.has_work():
        results.update(e.step().finished)
    return results


def assert_close(got: SampleResult, want: SampleResult) -> None:
    assert got.prompt_logprobs == pytest.approx(want.prompt_logprobs, abs=NOISE)
    for a, b in zip(got.samples, want.samples, strict=True):
        assert a.tokens == b.tokens
        assert a.logprobs == pytest.approx(b.logprobs, abs=NOISE)


@pytest.mark.parametrize(
    "options",
    [{}, {"max_batch_tokens": 8, "max_seqs": 8}, {"pack_layers": False}, {"graphs": True}],
)
def test_each_in_company_is_as_alone(model: Path, adapters, options: dict[str, Any]) -> None:
    together = finish(engine(model, adapters, **options), *crowd())
    for o in crowd():
        assert_close(together[o.op_id], finish(engine(model, adapters), o)[o.op_id])


@pytest.mark.parametrize("run_id", [ALL, HEAD_ALONE])
def test_logprobs_are_those_of_transformers_and_peft(model: Path, adapters, run_id: RunId) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    asked = [o for o in crowd() if (o.run_id, o.version) == (run_id, 1)]
    results = finish(engine(model, adapters, max_batch_tokens=40, max_seqs=9), *crowd())
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    reference = PeftModel.from_pretrained(base, adapters[run_id])
    for o in asked:
        result = results[o.op_id]
        for s in result.samples:
            with torch.no_grad():
                logits = reference(torch.tensor([o.prompt + s.tokens])).logits[0, :-1]
            logprobs = logits.log_softmax(-1)
            tokens = torch.tensor(o.prompt[1:] + s.tokens)
            want = logprobs.gather(-1, tokens[:, None])[:, 0]
            ours = torch.tensor((*result.prompt_logprobs, *s.logprobs), dtype=torch.float32)
            torch.testing.assert_close(ours, want, atol=1e-4, rtol=0)
            best = logprobs.topk(TOPK).values
            ranked = [[p for _, p in at] for at in (*result.prompt_topk, *s.topk)]
            torch.testing.assert_close(
                torch.tensor(ranked), best.double(), atol=1e-4, rtol=0, check_dtype=False
            )


def test_the_head_is_made_only_where_a_token_is_drawn_or_scored(
    model: Path, adapters, monkeypatch
) -> None:
    e = engine(model, adapters, max_batch_tokens=16, max_seqs=4)
    place, seen = head_place(e._model.arch), []
    real = LoraBatch.add

    def watched(self: LoraBatch, layer: int, group: str, x, y):
        if (layer, group) == place:
            seen.append(len(x))
        return real(self, layer, group, x, y)

    monkeypatch.setattr(LoraBatch, "add", watched)
    o = replace(op("x", ALL, n=3, prompt=PROMPT * 3), prompt_logprobs=False)
    e.add(o)
    steps = []
    while e.has_work():
        steps.append(e.step())
    reading = [s for s in steps if s.n_prefill_tokens]
    assert len(reading) == 4
    assert seen[0] == 1, "three samples draw from the prompt's last row"
    assert seen[1:] == [3] * (o.params.max_tokens - 1)


def pieces(model: Path, targets: tuple[str, ...], rank: int = 4) -> Pieces:
    arch, made = read_arch(model), random_adapter(model, targets, rank)
    return pack_adapter(made, arch, dtype=torch.float32, device="cpu")


def test_a_lone_adapters_rows_have_the_same_bits_few_or_many(model: Path) -> None:
    arch, alone = read_arch(model), pieces(model, (HEAD,))
    x, y = torch.randn(40, arch.hidden), torch.randn(40, arch.vocab_size)
    batch = LoraBatch([(0, 60, alone)], lone_rows=16)
    many = batch.at(range(40)).add(*head_place(arch), x, y.clone())
    assert not torch.equal(many, y)
    for n in (1, 2, 7, 15):
        few = batch.at(range(20, 20 + n)).add(*head_place(arch), x[:n], y[:n].clone())
        assert torch.equal(few, many[:n])


def test_rows_get_their_own_adapter_and_padding_none(model: Path) -> None:
    arch = read_arch(model)
    one, two = pieces(model, (HEAD,)), pieces(model, TARGETS, 9)
    batch = LoraBatch([(0, 3, None), (3, 7, one), (7, 9, pieces(model, ALL_LINEAR)), (9, 20, two)])
    rows = [0, 4, 6, 7, 9, 15]
    x, y = torch.randn(8, arch.hidden), torch.randn(8, arch.vocab_size)
    want = y.clone()
    for which, mine in ((one, slice(1, 3)), (two, slice(4, 6))):
        which[head_place(arch)].add(x[mine], want[mine])
    assert torch.equal(batch.at(rows).add(*head_place(arch), x, y), want)


def test_a_sample_moves_with_its_head(model: Path, adapters) -> None:
    want = finish(engine(model, adapters), op("x", ALL, n=2))["x"]
    here, there = engine(model, adapters), engine(model, adapters)
    here.add(op("x", ALL, n=2))
    for _ in range(4):
        here.step()
    there.import_sample(here.export_sample(OpId("x"), kv=True))
    assert_close(finish(there)["x"], want)


def test_an_adapter_that_peft_has_saved_is_sampled(model: Path, tmp_path: Path) -> None:
    theirs = saved_by_peft(model, tmp_path)
    result = finish(engine(model, {ALL: str(tmp_path)}), op("x", ALL))["x"]
    tokens = torch.tensor([PROMPT + result.samples[0].tokens])
    with torch.no_grad():
        logprobs = theirs(tokens).logits[0, :-1].log_softmax(-1)
    want = logprobs.gather(-1, tokens[0, 1:, None])[len(PROMPT) - 1 :, 0]
    assert result.samples[0].logprobs == pytest.approx(want.tolist(), abs=1e-4)


def test_an_adapter_of_another_models_head_is_refused(model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    saved_by_peft(model, tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    tensors["base_model.model.lm_head.base_layer.weight"].mul_(1.1)
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(ModelError, match="load the adapter with the model that it was trained on"):
        engine(model, {ALL: str(tmp_path)})
    with pytest.raises(ModelError, match="is not the base model's"):
        read_adapter(tmp_path, n_layers=2)


def test_a_head_of_another_size_is_refused(model: Path, tmp_path: Path) -> None:
    wrong = random_adapter(model, (HEAD,), 4)
    a, b = wrong.pairs[2, HEAD]
    wrong.pairs[2, HEAD] = a, b[1:]
    write_adapter(tmp_path, wrong, base_model=str(model))
    with pytest.raises(ModelError, match=r"layer 2 lm_head has A \(4, 48\) and B \(263, 4\)"):
        engine(model, {ALL: str(tmp_path)})


def test_in_deterministic_mode_trainer_and_sampler_have_the_same_bits(
    model: Path, tmp_path: Path, monkeypatch
) -> None:
    """Alone, in company that trains the head or does not, and with any number of threads."""
    for run_id, targets in ((MINE, TARGETS), (THIRD, (HEAD,))):
        spec = replace(deterministic.RUNS[run_id], targets=targets)
        monkeypatch.setitem(deterministic.RUNS, run_id, spec)
    train, paths = trainer(model), {}
    for run_id in (MINE, OTHER, THIRD):
        deterministic.create(train, run_id)
        paths[run_id] = str(tmp_path / run_id)
        (tmp_path / run_id).mkdir()
        train.save(run_id, paths[run_id], optimizer=False)
    found = drawn(sampler(model, paths))
    for options, n, threads in (
        ({}, 9, (1,)),
        ({"max_batch_tokens": 31, "max_seqs": 5}, 4, (1, 2)),
    ):
        crowded = drawn(
            sampler(model, paths, **options), *others(n, n), with_threads=threads, seed=n
        )
        assert crowded == found
    data = data_of(found)
    done = drain(train.forward_backward(MINE, data, "ppo", {}))
    assert done.metrics["kl_sampler:mean"] == done.metrics["logprob_diff:max"] == 0
    want = deterministic.update(train, data, (1,))
    for threads in ((2,), (1, 2, 3)):
        assert deterministic.update(train, data, threads) == want
