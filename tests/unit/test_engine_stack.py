"""Adapters side by side: each row gets its own, whoever comes and goes."""

import pytest
import torch
from random_models import random_model

from plait.adapters.peft import Adapter
from plait.core.ids import RunId
from plait.core.runs import ALL_LINEAR, LoraSpec
from plait.engines.torch.arch import GROUPS, Arch, group_sizes, read_arch
from plait.engines.torch.lora import LoraBatch, pack_adapter
from plait.engines.torch.stack import MAX_COLUMNS, NOBODY, Stack

pytestmark = pytest.mark.usefixtures("one_thread")
A, B, C = ((RunId(name), 1) for name in "abc")
BASE = (RunId("a"), None)


@pytest.fixture(scope="module")
def arch(tmp_path_factory: pytest.TempPathFactory) -> Arch:
    return read_arch(random_model(tmp_path_factory.mktemp("stack")))


def adapter(arch: Arch, rank: int, seed: int, targets: tuple[str, ...] = ALL_LINEAR) -> Adapter:
    g = torch.Generator().manual_seed(seed)
    pairs = {}
    for group, modules in GROUPS.items():
        n_in, outs = group_sizes(arch)[group]
        for module, n_out in zip(modules, outs, strict=True):
            for layer in range(arch.n_layers if module in targets else 0):
                pairs[layer, module] = (
                    torch.randn(rank, n_in, generator=g),
                    torch.randn(n_out, rank, generator=g),
                )
    return Adapter(spec=LoraSpec(rank=rank, alpha=3.0, targets=targets), pairs=pairs)


def assert_equal_segments(stack: Stack, arch: Arch, held: dict) -> None:
    """Rows of the base model and of every adapter, against ``LoraBatch``."""
    order = [BASE, *held, BASE]
    numbers = torch.tensor([stack.number(p) for p in order])
    segments = [
        (i, i + 1, pack_adapter(held[p], arch, dtype=torch.float32, device="cpu"))
        for i, p in enumerate(order)
        if p in held
    ]
    for group in GROUPS:
        n_in, outs = group_sizes(arch)[group]
        for layer in range(arch.n_layers):
            x = torch.randn(len(order), n_in)
            y = torch.randn(len(order), sum(outs))
            want = LoraBatch(segments).add(layer, group, x, y.clone())
            got = stack.adapters(numbers).add(layer, group, x, y.clone())
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)


def test_each_row_gets_its_own_adapter_while_others_come_and_go(arch: Arch) -> None:
    stack = Stack(arch, dtype=torch.float32, device="cpu")
    held = {A: adapter(arch, 4, 1), B: adapter(arch, 24, 2, ("k_proj", "up_proj", "o_proj"))}
    grown = [stack.put(p, a) for p, a in held.items()]
    assert grown == [True, False]
    assert stack.n_columns == 32
    assert_equal_segments(stack, arch, held)
    stack.drop(A)
    assert stack.number(A) is None
    del held[A]
    held[C] = adapter(arch, 8, 3)  # columns of A's, and some that were never used
    assert not stack.put(C, held[C])
    held[A] = adapter(arch, 20, 4)
    assert stack.put(A, held[A]), "grown: what is there keeps its place"
    assert_equal_segments(stack, arch, held)
    held[B] = adapter(arch, 24, 5, ("v_proj",))
    stack.put(B, held[B])
    assert_equal_segments(stack, arch, held)


def test_rows_without_an_adapter_and_unknown_ones(arch: Arch) -> None:
    stack = Stack(arch, dtype=torch.float32, device="cpu")
    assert (stack.number(BASE), stack.number(A)) == (NOBODY, None)


def test_a_sick_adapter_is_left_out(arch: Arch) -> None:
    stack = Stack(arch, dtype=torch.float32, device="cpu")
    sick = adapter(arch, 4, 1)
    sick.pairs[0, "q_proj"][1][0, 0] = float("nan")
    assert not stack.put(A, sick)
    assert stack.number(A) is None


def test_numbers_that_overflow_before_b_stay_with_their_row(arch: Arch) -> None:
    stack = Stack(arch, dtype=torch.float32, device="cpu")
    wild = adapter(arch, 4, 1)
    wild.pairs[0, "o_proj"][0].fill_(float("inf"))
    stack.put(A, wild)
    stack.put(B, adapter(arch, 4, 2))
    x, y = torch.ones(2, arch.q_size), torch.zeros(2, arch.hidden)
    numbers = torch.tensor([stack.number(A), stack.number(B)])
    out = stack.adapters(numbers).add(0, "o", x, y)
    assert not out[0].isfinite().all()
    assert out[1].isfinite().all()


def test_more_columns_than_pay_are_left_out(arch: Arch) -> None:
    stack = Stack(arch, dtype=torch.float32, device="cpu")
    n, rank = 0, 128
    while n + rank <= MAX_COLUMNS:
        stack.put((RunId(str(n)), 1), adapter(arch, rank, n))
        n += rank
    assert not stack.put(A, adapter(arch, 4, 1))
    assert stack.number(A) is None
    assert stack.n_columns == MAX_COLUMNS
