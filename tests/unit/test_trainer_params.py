from dataclasses import replace

import pytest
import torch
from test_trainer_ops import ARCH

from plait.adapters.peft import Adapter
from plait.core.errors import ModelError, RequestError
from plait.core.runs import TARGETS, LoraSpec
from plait.engines.torch.train.params import RunParams, check_spec, lay_out

CPU = torch.device("cpu")


def made(**fields) -> RunParams:
    params = RunParams(ARCH, LoraSpec(**{"rank": 2, **fields}), CPU)
    params.init()
    return params


def test_parts_tile_the_buffer() -> None:
    spec = LoraSpec(rank=3, targets=TARGETS)
    spans = []
    for p in lay_out(replace(ARCH, n_layers=2), spec):
        spans += [(p.a_start, 3 * p.n_in), (p.b_start, 3 * p.n_out)]
    end = 0
    for start, n in sorted(spans):
        assert start == end
        end += n
    assert end == len(RunParams(replace(ARCH, n_layers=2), spec, CPU).flat)


def test_init_is_pefts_distribution_from_the_seed_alone() -> None:
    one, same, other = made(seed=4), made(seed=4), made(seed=5)
    assert torch.equal(one.flat, same.flat)
    assert not torch.equal(one.flat, other.flat)
    for part in one.parts:
        a, b = one.pair(part)
        assert not b.any()
        bound = part.n_in**-0.5
        assert 0.5 * bound < a.abs().max() <= bound


def test_gradient_views_write_the_flat_gradient() -> None:
    params = made()
    for fused in params.fused.values():
        fused.da.add_(1)
        for dbt in fused.dbts:
            dbt.add_(1)
    assert bool((params.grad == 1).all())


def test_adapter_round_trip_and_missing_layers() -> None:
    params, copy = made(seed=1), made(seed=2)
    params.flat.add_(1)
    adapter = params.to_adapter()
    copy.set_adapter(adapter)
    assert torch.equal(copy.flat, params.flat)
    del adapter.pairs[0, "o_proj"]
    copy.set_adapter(adapter)
    lost = next(p for p in copy.parts if p.module == "o_proj")
    assert not any(x.any() for x in copy.pair(lost))


def test_an_adapter_of_another_shape_is_refused() -> None:
    other = RunParams(replace(ARCH, hidden=16), LoraSpec(rank=2), CPU)
    with pytest.raises(ModelError, match=r"lora_A of layer 0 q_proj is \(2, 16\)"):
        made().set_adapter(Adapter(spec=other.spec, pairs=other.to_adapter().pairs))


@pytest.mark.parametrize("rank", [0, -1, 65])
def test_ranks_outside_the_range_are_refused(rank: int) -> None:
    with pytest.raises(RequestError, match="1 to 64"):
        check_spec(LoraSpec(rank=rank))


def test_unknown_targets_are_refused_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match="did you mean q_proj"):
        check_spec(LoraSpec(targets=("q_prj",)))
    with pytest.raises(RequestError, match=", ".join(TARGETS)):
        check_spec(LoraSpec(targets=("embed_tokens",)))
    with pytest.raises(RequestError, match="empty"):
        check_spec(LoraSpec(targets=()))


def test_alpha_must_be_positive() -> None:
    with pytest.raises(RequestError, match="alpha"):
        check_spec(LoraSpec(alpha=0.0))
