"""Models through ``transformers``, by family: equal to it, to peft, and to our own forward."""

from pathlib import Path

import pytest
import torch
from fallback_support import PEFT_WARNINGS, TOLERANCE, reference, stir, with_prefixes
from foreign_models import FAMILIES, foreign_model
from trainer_support import RUN, drain, peft_model, reference_logprobs, relative_l2

from plait.core.ids import OpId, RunId
from plait.core.operations import Sample, SamplingParams
from plait.core.runs import ALL_LINEAR, HEAD, TARGETS, LoraSpec
from plait.engines.torch.rollout import TorchRollout
from plait.engines.torch.train.params import RunParams
from plait.engines.torch.trainer import TorchTrain
from plait.models.registry import resolve
from plait.models.tokenizer import Tokenizer

pytestmark = PEFT_WARNINGS
PROMPTS = (tuple(range(60, 83)), tuple(range(40, 47)), tuple(range(100, 140)))
RANKS = {1: 3, 7: 12}
WITH_HEAD = 7


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
