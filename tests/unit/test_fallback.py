"""Models through ``transformers``: against it, against peft, and against our own forward."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
from foreign_models import FAMILIES, foreign_model
from random_models import random_model
from safetensors.torch import load_file, save_file
from trainer_support import RUN, drain, make_data, peft_model, reference_logprobs, relative_l2

from plait.core.errors import ModelError, RequestError
from plait.core.ids import OpId, RunId
from plait.core.operations import AdamParams, ForwardBackward, Sample, SamplingParams
from plait.core.runs import ALL_LINEAR, HEAD, TARGETS, LoraSpec
from plait.engines.torch.fallback import model as fallback_model
from plait.engines.torch.rollout import TorchRollout
from plait.engines.torch.train import packing
from plait.engines.torch.train.params import RunParams
from plait.engines.torch.trainer import TorchTrain
from plait.models.registry import resolve
from plait.models.shape import read_shape
from plait.models.tokenizer import Tokenizer

# peft asks transformers for a property under its old name, and says when it saves the head.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*save_embedding_layers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*tie_word_embeddings:UserWarning"),
]

TOLERANCE = 1e-4
PROMPTS = (tuple(range(60, 83)), tuple(range(40, 47)), tuple(range(100, 140)))
RANKS = {1: 3, 7: 12}
WITH_HEAD = 7
ONE = SamplingParams(max_tokens=2)


def stir(params: RunParams, scale: float, seed: int = 9) -> None:
    """Move a run off version 0, so that B matters."""
    g = torch.Generator().manual_seed(seed)
    params.flat.add_(torch.randn(params.flat.shape, generator=g), alpha=scale)


def adapters(model: Path, folder: Path, *, scale: float = 0.05, **how) -> dict[int, str]:
    """Two versions of different ranks, saved by the training engine; one changes the head too."""
    engine = TorchTrain(model, **how)
    paths = {}
    for version, rank in RANKS.items():
        run = RunId(f"v{version}")
        targets = engine._arch.targets if version == WITH_HEAD else ALL_LINEAR
        engine.create(run, LoraSpec(rank=rank, seed=version, targets=targets))
        stir(engine._run(run), scale, seed=version)
        paths[version] = folder / run
        paths[version].mkdir()
        engine.save(run, str(paths[version]), optimizer=False)
    return {v: str(p) for v, p in paths.items()}


def sampled(model: Path, paths: dict[int, str], prompts, n_tokens: int, **how) -> dict:
    """Greedy and drawn samples of the base and both versions, all in one engine at once."""
    engine = TorchRollout(model, n_blocks=512, max_batch_tokens=64, **how)
    for version, path in paths.items():
        engine.load_adapter(RUN, version, path)
    for version in (None, *paths):
        for i, prompt in enumerate(prompts):
            for temperature in (0.0, 1.0):
                params = SamplingParams(
                    max_tokens=n_tokens, temperature=temperature, ignore_eos=True
                )
                engine.add(
                    Sample(
                        op_id=OpId(f"{version}/{i}/{temperature}"),
                        run_id=RUN,
                        version=version,
                        prompt=prompt,
                        params=params,
                        n=1 if temperature == 0 else 3,
                    )
                )
    found: dict = {}
    while engine.has_work():
        found.update(engine.step().finished)
    return found


def reference(model: Path, path: str | None):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return base.eval() if path is None else PeftModel.from_pretrained(base, path).eval()


def check(model: Path, path: str | None, version: int | None, found: dict) -> None:
    """Greedy tokens one for one, log-probs of everything."""
    known = reference(model, path)
    for i, prompt in enumerate(PROMPTS):
        ids = torch.tensor([prompt])
        (greedy,) = found[f"{version}/{i}/0.0"].samples
        with torch.no_grad():
            whole = known.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=len(greedy.tokens),
                do_sample=False,
            )
        check_greedy(known, prompt, tuple(whole[0, len(prompt) :].tolist()), greedy.tokens)
        for drawn in (greedy, *found[f"{version}/{i}/1.0"].samples):
            with torch.no_grad():
                logits = known(torch.tensor([prompt + drawn.tokens]), use_cache=False).logits
            want = logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            want = want.gather(-1, torch.tensor(drawn.tokens)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(drawn.logprobs), want, atol=TOLERANCE, rtol=0)


def check_greedy(model, prompt, want: tuple[int, ...], drawn: tuple[int, ...]) -> None:
    """Each token is the likeliest behind those before it. The whole may leave ``want`` only where
    the model itself holds two for equally likely: products of floats differ with the place of their
    operands in memory."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + drawn]), use_cache=False).logits[
            0, len(prompt) - 1 : -1
        ]
    behind = logits.max(-1).values - logits.gather(-1, torch.tensor(drawn)[:, None])[:, 0]
    assert behind.max() <= TOLERANCE, (want, drawn)
    if want != drawn:
        n = next(i for i, (a, b) in enumerate(zip(want, drawn, strict=True)) if a != b)
        assert logits[n].max() - logits[n, want[n]] <= TOLERANCE, (n, want, drawn)


QUICK = ("gemma2", "gpt-neox", "minicpm3", "phi3")
"""Families of every test run: windows, caps and scales; fused heads, biases and a name of its own
for everything; values of another head size than keys; fused products."""
EACH = [f if f in QUICK else pytest.param(f, marks=pytest.mark.slow) for f in sorted(FAMILIES)]


@pytest.mark.parametrize("family", EACH)
def test_samples_of_mixed_adapters_equal_generate_and_peft(family: str, tmp_path: Path) -> None:
    model = foreign_model(tmp_path / "model", family)
    paths = adapters(model, tmp_path)
    found = sampled(model, paths, PROMPTS, 20)
    for version, path in {None: None, **paths}.items():
        check(model, path, version, found)
    tokens = {found[f"{v}/0/0.0"].samples[0].tokens for v in (None, *paths)}
    assert len(tokens) == 3


def loss_of(model, data) -> torch.Tensor:
    """Importance sampling, one unpadded sequence at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for datum in data:
        rows = torch.tensor(datum.mask).nonzero()[:, 0]
        found = reference_logprobs(model, datum)
        a, q, w = (
            torch.tensor(datum.inputs[k], dtype=torch.float64)[rows]
            for k in ("advantages", "logprobs", "weights")
        )
        total = total - (w * torch.exp(found - q) * a).sum()
    return total


def with_prefixes() -> list:
    """Four sequences alike up to their answers, and three by themselves."""
    group = make_data([30] * 4, seed=1)
    for datum in group:
        datum.input_tokens[:18] = group[0].input_tokens[:18]
    return [*group, *make_data([9, 17, 24], seed=2)]


@pytest.mark.parametrize("family", EACH)
def test_gradients_equal_autograd(family: str, tmp_path: Path) -> None:
    model = foreign_model(tmp_path / "model", family)
    engine = TorchTrain(model)
    engine.create(RUN, LoraSpec(rank=4, seed=1, targets=engine._arch.targets))
    params = engine._run(RUN)
    assert params.parts[-1].module == HEAD
    stir(params, 0.05)
    (tmp_path / "run").mkdir()
    engine.save(RUN, str(tmp_path / "run"), optimizer=False)
    data = with_prefixes()
    result = drain(engine.forward_backward(RUN, data, "importance_sampling", {}))
    known = peft_model(model, tmp_path / "run", torch.float64)
    loss = loss_of(known, data)
    loss.backward()
    for ours, datum in zip(result.logprobs, data, strict=True):
        theirs = reference_logprobs(known, datum)
        assert (torch.tensor(ours) - theirs).abs().max() <= TOLERANCE
    found = dict(known.named_parameters())
    want = torch.zeros(params.grad.shape, dtype=torch.float64)
    for part in params.parts:
        stem = f"base_model.model.{part.module}.lora_"
        a = found[f"{stem}A.default.weight"].grad
        bt = found[f"{stem}B.default.weight"].grad.T
        for start, grad in ((part.a_start, a), (part.b_start, bt)):
            want[start : start + grad.numel()] = grad.flatten()
    assert relative_l2(params.grad, want) <= 1e-5


def pairs(params: RunParams, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
    """A buffer's matrices by layer and module, whatever their order."""
    r, out = params.spec.rank, {}
    for p in params.parts:
        key = HEAD if p.module == HEAD else f"{p.layer}.{p.module.rpartition('.')[2]}"
        out[f"{key}.A"] = buffer[p.a_start : p.a_start + r * p.n_in]
        out[f"{key}.B"] = buffer[p.b_start : p.b_start + r * p.n_out]
    return out


def compare_ways(model: Path, folder: Path, prompts, n_tokens: int, scale: float) -> None:
    """Our own forward and ``transformers``: samples, log-probs, gradients, one step."""
    paths = adapters(model, folder, scale=scale)
    own, other = (
        sampled(model, paths, prompts, n_tokens, by_transformers=by) for by in (False, True)
    )
    for name, result in own.items():
        for a, b in zip(result.samples, other[name].samples, strict=True):
            assert a.tokens == b.tokens
            gap = torch.tensor(a.logprobs) - torch.tensor(b.logprobs)
            assert gap.abs().max() <= TOLERANCE


def compare_training(model: Path, data, folder: Path) -> None:
    engines = [TorchTrain(model, by_transformers=by) for by in (False, True)]
    for engine in engines:
        engine.create(RUN, LoraSpec(rank=4, seed=1, targets=TARGETS))
    mine, theirs = (engine._run(RUN) for engine in engines)
    first = pairs(mine, mine.flat)
    assert all(torch.equal(first[k], v) for k, v in pairs(theirs, theirs.flat).items())
    stir(mine, 0.02)
    folder.mkdir()
    engines[0].save(RUN, str(folder), optimizer=False)
    engines[1].load(RUN, str(folder), optimizer=False)
    theirs = engines[1]._run(RUN)
    results = [drain(e.forward_backward(RUN, data, "importance_sampling", {})) for e in engines]
    for a, b in zip(*(r.logprobs for r in results), strict=True):
        assert max(abs(x - y) for x, y in zip(a, b, strict=True)) <= TOLERANCE
    a, b = pairs(mine, mine.grad), pairs(theirs, theirs.grad)
    assert relative_l2(*(torch.cat([x[k] for k in a]) for x in (b, a))) <= 1e-5


def test_tiny_is_the_same_both_ways(tmp_path: Path) -> None:
    model = resolve("tiny")
    compare_ways(model, tmp_path, PROMPTS, 24, 0.02)
    compare_training(model, with_prefixes(), tmp_path / "run")


@pytest.mark.slow
def test_smollm2_is_the_same_both_ways(tmp_path: Path) -> None:
    model = resolve("smollm2-135m")
    tokenizer = Tokenizer(model)
    texts = ("What is 17 + 25?", "Name three rivers of Europe and the seas that they flow into.")
    compare_ways(model, tmp_path, [tokenizer.prompt(t) for t in texts], 16, 0.005)
    compare_training(model, with_prefixes(), tmp_path / "run")


def test_runs_share_a_pass_and_only_that(tmp_path: Path, monkeypatch) -> None:
    """Ranks and targets mixed in one micro-batch, as each run would learn alone; some blocks of the
    head are of two runs."""
    model = foreign_model(tmp_path / "model", "gemma2")
    specs = {
        RunId("a"): LoraSpec(rank=4, seed=1),
        RunId("b"): LoraSpec(rank=9, seed=2, targets=("v_proj", "down_proj", HEAD)),
        RunId("c"): LoraSpec(rank=2, seed=3, targets=(HEAD,)),
    }
    engine = TorchTrain(model)
    gradients: dict[RunId, list[torch.Tensor]] = {}
    data = {run: make_data([20, 9, 20], seed=i) for i, run in enumerate(specs)}
    for run, spec in specs.items():
        engine.create(run, spec)
        params = engine._run(run)
        stir(params, 0.05)
        drain(engine.forward_backward(run, data[run], "cross_entropy", {}))
        gradients[run] = [params.grad.clone()]
        params.grad.zero_()
    ops = [
        ForwardBackward(
            op_id=OpId(run), run_id=run, seq=1, data=data[run], loss="cross_entropy", loss_config={}
        )
        for run in specs
    ]
    monkeypatch.setattr(fallback_model, "block_rows", lambda _: 7)
    (step,) = engine.forward_backward_many(ops)
    assert set(step.tokens_by_run) == set(specs)
    for run, (alone,) in gradients.items():
        assert relative_l2(engine._run(run).grad, alone) <= 1e-5


def test_recomputing_layers_gives_the_same_gradient(tmp_path: Path) -> None:
    model = foreign_model(tmp_path / "model", "phi3")
    grads = []
    for recompute in (False, True):
        engine = TorchTrain(model, recompute=recompute)
        engine.create(RUN, LoraSpec(rank=4, seed=1, targets=engine._arch.targets))
        stir(engine._run(RUN), 0.05)
        drain(engine.forward_backward(RUN, with_prefixes(), "cross_entropy", {}))
        grads.append(engine._run(RUN).grad)
    assert torch.equal(*grads)
    assert grads[0].abs().max() > 0


def test_micro_batches_go_one_after_the_other(tmp_path: Path, monkeypatch) -> None:
    """However many lanes are asked for: a model of transformers has one pass under way."""
    monkeypatch.setattr(packing, "LANE_TOKENS", 1)
    model, data = foreign_model(tmp_path / "model", "phi3"), with_prefixes()
    grads = []
    for lanes in (1, 2):
        engine = TorchTrain(model, max_tokens=60, lanes=lanes)
        engine.create(RUN, LoraSpec(rank=4, seed=1, targets=engine._arch.targets))
        stir(engine._run(RUN), 0.05)
        assert len(list(engine.forward_backward(RUN, data, "cross_entropy", {}))) > 1
        grads.append(engine._run(RUN).grad)
    assert torch.equal(*grads)
    assert grads[0].abs().max() > 0


def test_a_run_goes_on_from_disk(tmp_path: Path) -> None:
    model = foreign_model(tmp_path / "model", "gpt-neox")
    engine, other = TorchTrain(model), TorchTrain(model)
    engine.create(RUN, LoraSpec(rank=4, seed=1))
    adam = AdamParams(learning_rate=1e-2)

    def step(e: TorchTrain) -> torch.Tensor:
        drain(e.forward_backward(RUN, make_data([12, 20]), "cross_entropy", {}))
        e.optim_step(RUN, adam)
        return e._run(RUN).flat

    step(engine)
    (tmp_path / "run").mkdir()
    engine.save(RUN, str(tmp_path / "run"), optimizer=True)
    other.load(RUN, str(tmp_path / "run"), optimizer=True)
    assert torch.equal(step(engine), step(other))
    assert other._run(RUN).spec == engine._run(RUN).spec


def test_moments_of_the_other_way_are_refused(tmp_path: Path) -> None:
    """The two ways keep a run's matrices in another order."""
    model = random_model(tmp_path / "model")
    engine, other = TorchTrain(model), TorchTrain(model, by_transformers=True)
    engine.create(RUN, LoraSpec(rank=4))
    (tmp_path / "run").mkdir()
    engine.save(RUN, str(tmp_path / "run"), optimizer=True)
    with pytest.raises(ModelError, match="load it with optimizer=False"):
        other.load(RUN, str(tmp_path / "run"), optimizer=True)


def test_targets_are_all_linear_layers_but_the_head_unless_chosen(tmp_path: Path) -> None:
    engine = TorchTrain(foreign_model(tmp_path / "model", "gpt-neox"))
    engine.create(RUN, LoraSpec(rank=2))
    names = {p.module.rpartition(".")[2] for p in engine._run(RUN).parts}
    assert names == {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}
    engine.create(RunId("b"), LoraSpec(rank=2, targets=("dense",)))
    assert {p.module for p in engine._run(RunId("b")).parts} == {
        f"gpt_neox.layers.{i}.attention.dense" for i in range(2)
    }
    with pytest.raises(RequestError, match=r"'query_keys'.*did you mean query_key_value"):
        engine.create(RunId("c"), LoraSpec(targets=("query_keys",)))
    engine.create(RunId("c"), LoraSpec(rank=2, targets=("dense", "lm_head")))
    assert engine._run(RunId("c")).parts[-1].module == "lm_head"
    with pytest.raises(RequestError, match="'embed_out' matches no linear layer"):
        engine.create(RunId("d"), LoraSpec(targets=("embed_out",)))


def saved_by_peft(model: Path, folder: Path):
    """An adapter of peft's own making, which brings the base model's head along."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "down_proj", HEAD])
    theirs = get_peft_model(reference(model, None), config)
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in theirs.named_parameters():
            if "lora_" in name:
                p.copy_(0.1 * torch.randn(p.shape, generator=g))
    theirs.save_pretrained(folder)
    return theirs.eval()


def test_a_head_that_peft_has_saved_is_taken_with_its_own_base_alone(tmp_path: Path) -> None:
    model, folder = foreign_model(tmp_path / "model", "gemma2"), tmp_path / "theirs"
    theirs = saved_by_peft(model, folder)
    train, data = TorchTrain(model), make_data([12, 20])
    train.load(RUN, str(folder), optimizer=False)
    assert set(train._run(RUN).spec.targets) == {"q_proj", "down_proj", HEAD}
    found = drain(train.forward(RUN, data, adapter=True)).logprobs
    for ours, datum in zip(found, data, strict=True):
        with torch.no_grad():
            want = reference_logprobs(theirs, datum)
        assert (torch.tensor(ours) - want).abs().max() <= TOLERANCE
    rollout_of(model).load_adapter(RUN, 1, str(folder))
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors[f"base_model.model.{HEAD}.base_layer.weight"][5, 5] += 0.1
    save_file(tensors, file, metadata={"format": "pt"})
    for load in (
        lambda: train.load(RUN, str(folder), optimizer=False),
        lambda: rollout_of(model).load_adapter(RUN, 1, str(folder)),
    ):
        with pytest.raises(
            ModelError, match=r"lm_head\.base_layer\.weight is not the base model's"
        ):
            load()


def test_its_decode_steps_are_never_recorded(tmp_path: Path) -> None:
    engine = rollout_of(foreign_model(tmp_path / "model", "olmo2"), graphs=True)
    assert engine._graphs is None
    engine.add(Sample(op_id=OpId("x"), run_id=RUN, version=None, prompt=(1,), params=ONE))
    while engine.has_work():
        finished = engine.step().finished
    assert len(finished[0][1].samples[0].tokens) == ONE.max_tokens


def test_half_precision_is_converted_once_and_mapped(tmp_path: Path) -> None:
    model = foreign_model(tmp_path / "model", "olmo2", dtype=torch.bfloat16)
    cache = tmp_path / "cache"
    for _ in range(2):
        engine = TorchRollout(model, n_blocks=8, max_seqs=1, max_batch_tokens=8, cache=cache)
        assert engine._model.dtype == torch.float32
    (copy,) = (p for p in (cache / "weights").iterdir() if p.is_dir())
    assert any(str(copy) in line for line in Path("/proc/self/maps").read_text().splitlines())


def rollout_of(model: Path, **how) -> TorchRollout:
    return TorchRollout(model, n_blocks=8, max_seqs=1, max_batch_tokens=8, **how)


def test_a_cache_goes_with_its_engine(tmp_path: Path) -> None:
    """Though transformers' registries keep what was registered."""
    engine = rollout_of(foreign_model(tmp_path / "model", "olmo2"))
    engine.add(Sample(op_id=OpId("x"), run_id=RUN, version=None, prompt=(1,), params=ONE))
    engine.step()
    cache = weakref.ref(engine._kv)
    del engine
    gc.collect()
    assert cache() is None


def test_threads_may_change_at_every_layer_of_both_passes(tmp_path: Path) -> None:
    calls: list[None] = []
    engine = TorchTrain(
        foreign_model(tmp_path / "model", "olmo2"), on_layer=lambda: calls.append(None)
    )
    engine.create(RUN, LoraSpec())
    assert not calls
    drain(engine.forward_backward(RUN, make_data([9]), "cross_entropy", {}))
    assert len(calls) == 2 * engine.shape.n_layers


def test_numbers_come_from_the_files(tmp_path: Path) -> None:
    shape = read_shape(foreign_model(tmp_path, "gpt-neox"))
    model = reference(tmp_path, None)
    assert shape.n_params == sum(p.numel() for p in model.parameters())
    assert (shape.n_layers, shape.n_kv_heads, shape.head_dim) == (2, 6, 8)
    assert set(shape.linear_layers) == {
        "query_key_value",
        "dense",
        "dense_h_to_4h",
        "dense_4h_to_h",
        "lm_head",
    }
