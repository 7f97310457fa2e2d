"""The torch rollout against ``transformers`` and ``peft``, token for token."""

from pathlib import Path

import pytest
import torch
from random_models import FAMILIES, private_cache, random_model

from plait.adapters.peft import Adapter, write_adapter
from plait.core.ids import OpId, RunId
from plait.core.operations import Sample, SampleResult, SamplingParams
from plait.core.runs import LoraSpec
from plait.engines.torch.arch import GROUPS, group_sizes, read_arch
from plait.engines.torch.rollout import TorchRollout
from plait.models.registry import resolve
from plait.models.tokenizer import Tokenizer

# peft asks transformers for a property under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

RUN = RunId("r")
TOLERANCE = 1e-4
PROMPTS = (tuple(range(60, 83)), tuple(range(40, 47)), tuple(range(100, 140)))


def adapter(model: Path, folder: Path, *, rank: int, scale: float) -> str:
    arch, generator = read_arch(model), torch.Generator().manual_seed(rank)
    pairs = {}
    for group, modules in GROUPS.items():
        n_in, outs = group_sizes(arch)[group]
        for module, n_out in zip(modules, outs, strict=True):
            for i in range(arch.n_layers):
                a = torch.randn(rank, n_in, generator=generator) * n_in**-0.5
                b = torch.randn(n_out, rank, generator=generator) * scale
                pairs[i, module] = (a, b)
    folder.mkdir()
    write_adapter(folder, Adapter(spec=LoraSpec(rank=rank), pairs=pairs), base_model=str(model))
    return str(folder)


def rollout(
    model: Path, cache: Path | None, paths: dict[int, str], prompts, n_tokens: int
) -> dict[str, SampleResult]:
    engine = TorchRollout(model, n_blocks=256, cache=cache, max_batch_tokens=64)
    for version, path in paths.items():
        engine.load_adapter(RUN, version, path)
    for version in (None, *paths):
        for i, prompt in enumerate(prompts):
            for temperature in (0.0, 1.0):
                name = OpId(f"{version}/{i}/{temperature}")
                params = SamplingParams(
                    max_tokens=n_tokens, temperature=temperature, ignore_eos=True
                )
                engine.add(
                    Sample(op_id=name, run_id=RUN, version=version, prompt=prompt, params=params)
                )
    results: dict[str, SampleResult] = {}
    while engine.has_work():
        results.update(engine.step().finished)
    return results


def check(reference, version: int | None, prompts, results: dict[str, SampleResult]) -> None:
    for i, prompt in enumerate(prompts):
        for temperature in (0.0, 1.0):
            (drawn,) = results[f"{version}/{i}/{temperature}"].samples
            with torch.no_grad():
                logits = reference(torch.tensor([prompt + drawn.tokens])).logits
            logprobs = logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            tokens = torch.tensor(drawn.tokens)
            want = logprobs.gather(-1, tokens[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(drawn.logprobs), want, atol=TOLERANCE, rtol=0)
            if temperature == 0:
                assert logprobs.argmax(-1).tolist() == tokens.tolist()


def compare(model: Path, cache: Path | None, folder: Path, prompts, scale: float) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    paths = {v: adapter(model, folder / f"v{v}", rank=3 * v, scale=scale) for v in (1, 7)}
    results = rollout(model, cache, paths, prompts, 24)
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    check(reference, None, prompts, results)
    for version, path in paths.items():
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        check(PeftModel.from_pretrained(base, path), version, prompts, results)
    drawn = {version: results[f"{version}/0/0.0"].samples[0].tokens for version in (None, 1, 7)}
    assert len(set(drawn.values())) == 3


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_matches_transformers_and_peft(family: str, tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", family)
    with private_cache(tmp_path):
        compare(model, None, tmp_path, PROMPTS, 0.3)


@pytest.mark.slow
def test_smollm2_matches_transformers_and_peft(tmp_path: Path) -> None:
    model = resolve("smollm2-135m")
    tokenizer = Tokenizer(model)
    texts = ("What is 17 + 25?", "Name three rivers of Europe and the seas that they flow into.")
    compare(model, None, tmp_path, [tokenizer.prompt(t) for t in texts], 0.05)
