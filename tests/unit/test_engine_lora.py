import pytest
import torch

from plait.adapters.peft import Adapter
from plait.core.errors import ModelError
from plait.core.runs import ALL_LINEAR, LoraSpec
from plait.engines.torch.arch import GROUPS, Arch, group_sizes
from plait.engines.torch.lora import WHOLE_RANK, LoraBatch, pack_adapter

ARCH = Arch(
    vocab_size=10,
    hidden=24,
    inter=40,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=6,
    eps=1e-6,
    max_context=16,
    tied=True,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    inv_freq=(1.0,),
)


def adapter(rank: int, seed: int, targets: tuple[str, ...] = ALL_LINEAR) -> Adapter:
    generator = torch.Generator().manual_seed(seed)
    pairs = {}
    for group, modules in GROUPS.items():
        n_in, outs = group_sizes(ARCH)[group]
        for module, n_out in zip(modules, outs, strict=True):
            for layer in range(ARCH.n_layers):
                if module in targets:
                    pairs[layer, module] = (
                        torch.randn(rank, n_in, generator=generator),
                        torch.randn(n_out, rank, generator=generator),
                    )
    return Adapter(spec=LoraSpec(rank=rank, alpha=3.0, targets=targets), pairs=pairs)


def packed(a: Adapter):
    return pack_adapter(a, ARCH, dtype=torch.float32, device="cpu")


def by_hand(a: Adapter, layer: int, group: str, x: torch.Tensor) -> torch.Tensor:
    parts = []
    for module, n_out in zip(GROUPS[group], group_sizes(ARCH)[group][1], strict=True):
        pair = a.pairs.get((layer, module))
        zero = x.new_zeros(len(x), n_out)
        scale = a.spec.alpha / a.spec.rank
        parts.append(zero if pair is None else x @ pair[0].T @ pair[1].T * scale)
    return torch.cat(parts, -1)


@pytest.mark.parametrize("group", sorted(GROUPS))
@pytest.mark.parametrize("targets", [ALL_LINEAR, ("k_proj", "up_proj", "down_proj"), ("q_proj",)])
@pytest.mark.parametrize("rank", [1, WHOLE_RANK, WHOLE_RANK + 1])
def test_each_segment_gets_its_own_adapter(rank: int, targets: tuple[str, ...], group: str) -> None:
    one, two = adapter(rank, 1, targets), adapter(5, 2)
    n_in, outs = group_sizes(ARCH)[group]
    x, y = torch.randn(12, n_in), torch.randn(12, sum(outs))
    want = y.clone()
    want[2:5] += by_hand(one, 1, group, x[2:5])
    want[5:11] += by_hand(two, 1, group, x[5:11])
    batch = LoraBatch([(0, 2, None), (2, 5, packed(one)), (5, 11, packed(two))])
    torch.testing.assert_close(batch.add(1, group, x, y), want, atol=1e-4, rtol=1e-4)


def test_not_a_number_stays_in_its_own_rows() -> None:
    sick = adapter(4, 1)
    for a, b in sick.pairs.values():
        a.fill_(float("nan"))
        b.fill_(float("nan"))
    well = packed(adapter(4, 2))
    for group in GROUPS:
        n_in, outs = group_sizes(ARCH)[group]
        x, y = torch.randn(9, n_in), torch.randn(9, sum(outs))
        alone = LoraBatch([(4, 9, well)]).add(0, group, x, y.clone())
        both = LoraBatch([(0, 4, packed(sick)), (4, 9, well)]).add(0, group, x, y.clone())
        assert both[:4].isnan().all()
        assert torch.equal(both[4:], alone[4:])


def test_a_lone_adapters_rows_have_the_same_bits_few_or_many() -> None:
    pieces = packed(adapter(4, 1))
    for group in GROUPS:
        n_in, outs = group_sizes(ARCH)[group]
        x, y = torch.randn(40, n_in), torch.randn(40, sum(outs))
        many = LoraBatch([(0, 40, pieces)], lone_rows=16).add(0, group, x, y.clone())
        for n in (1, 2, 3, 7, 15):
            few = LoraBatch([(0, n, pieces)], lone_rows=16).add(0, group, x[:n], y[:n].clone())
            assert torch.equal(few, many[:n])


def test_without_adapters_there_is_nothing_to_do() -> None:
    assert LoraBatch([(0, 4, None)]).is_empty
    assert not LoraBatch([(0, 4, packed(adapter(2, 0)))]).is_empty


def test_an_adapter_of_another_model_is_refused() -> None:
    wrong = adapter(4, 1)
    a, b = wrong.pairs[0, "o_proj"]
    wrong.pairs[0, "o_proj"] = (a[:, 1:], b)
    with pytest.raises(ModelError, match="layer 0 o_proj"):
        packed(wrong)


def test_a_rank_beyond_the_largest_is_refused() -> None:
    with pytest.raises(ModelError, match="rank 65"):
        packed(adapter(65, 1))
