"""Each piece of a block against autograd on the plain formula."""

import torch
import torch.nn.functional as F

from plait.core.runs import LoraSpec
from plait.engines.torch.arch import Arch
from plait.engines.torch.train.head import block_rows, target_logprobs
from plait.engines.torch.train.ops import Norm, gated_linear, linear, norm
from plait.engines.torch.train.params import RunParams

ARCH = Arch(
    vocab_size=50,
    hidden=12,
    inter=20,
    n_layers=1,
    n_heads=3,
    n_kv_heads=1,
    head_dim=4,
    eps=1e-5,
    max_context=64,
    tied=True,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    inv_freq=(1.0, 0.1),
)


def run_params(rank: int = 2) -> RunParams:
    params = RunParams(ARCH, LoraSpec(rank=rank, alpha=3.0), torch.device("cpu"))
    params.flat.copy_(torch.randn(params.flat.shape, generator=torch.Generator().manual_seed(1)))
    return params


def plain_weight(params: RunParams, group: str, weight: torch.Tensor) -> torch.Tensor:
    """``W + alpha/R B A`` from leaves, so that autograd fills their gradients."""
    rows = []
    for part in params.parts:
        if part.group == group:
            a, b = params.pair(part)
            rows.append(1.5 * b @ a)
    return weight + torch.cat(rows)


def test_norm() -> None:
    torch.manual_seed(0)
    x, weight, dy = torch.randn(5, 12), torch.randn(12), torch.randn(5, 12)
    ours, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = norm(ours, Norm(weight, 1e-5))
    y.backward(dy)
    F.rms_norm(plain, (12,), weight, 1e-5).backward(dy)
    torch.testing.assert_close(ours.grad, plain.grad)


def test_linear_and_its_residual() -> None:
    torch.manual_seed(0)
    params = run_params()
    x, r, weight = torch.randn(7, 12), torch.randn(7, 40), torch.randn(40, 12)
    bias, dy = torch.randn(40), torch.randn(7, 40)
    ours = [t.clone().requires_grad_() for t in (x, r)]
    mine = [(slice(0, 7), params.fused[0, "gate_up"])]
    linear(ours[0], weight, bias, mine, residual_NO=ours[1]).backward(dy)
    plain = [t.clone().requires_grad_() for t in (x, r)]
    full = plain_weight(params, "gate_up", weight)
    (F.linear(plain[0], full, bias) + plain[1]).backward(dy)
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_linear_of_a_normed_input() -> None:
    torch.manual_seed(0)
    params = run_params()
    x, weight, dy = torch.randn(7, 12), torch.randn(40, 12), torch.randn(7, 40)
    by, fused = Norm(torch.randn(12), 1e-5), params.fused[0, "gate_up"]
    ours, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    linear(ours, weight, None, [(slice(0, 7), fused)], before=by).backward(dy)
    a, bs = fused.a.clone().requires_grad_(), [bt.clone().requires_grad_() for bt in fused.bts]
    update = torch.cat([1.5 * bt.T @ a[rows] for bt, rows in zip(bs, fused.rows, strict=True)])
    h = F.rms_norm(plain, (12,), by.weight, by.eps)
    F.linear(h, weight + update).backward(dy)
    torch.testing.assert_close(ours.grad, plain.grad)
    torch.testing.assert_close(fused.da, a.grad)
    for dbt, bt in zip(fused.dbts, bs, strict=True):
        torch.testing.assert_close(dbt, bt.grad)


def test_linear_without_adapter_makes_no_weight_gradient() -> None:
    x, weight = torch.randn(3, 12, requires_grad=True), torch.randn(8, 12)
    linear(x, weight, None, []).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(3, -1))
    assert weight.grad is None


def test_gated_linear() -> None:
    torch.manual_seed(0)
    params = run_params()
    gate_up, weight = torch.randn(7, 40), torch.randn(12, 20)
    r, dy = torch.randn(7, 12), torch.randn(7, 12)
    ours = gate_up.clone().requires_grad_()
    mine = [(slice(0, 7), params.fused[0, "down"])]
    y = gated_linear(ours * 1.0, weight, None, mine, residual_ND=r)
    y.backward(dy)
    plain = gate_up.clone().requires_grad_()
    gate, up = plain.chunk(2, -1)
    full = plain_weight(params, "down", weight)
    want = F.linear(F.silu(gate) * up, full) + r
    want.backward(dy)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(ours.grad, plain.grad)


def test_each_rows_meet_their_own_adapter_alone() -> None:
    torch.manual_seed(0)
    runs = ((slice(0, 3), run_params(2)), (slice(5, 9), run_params(5)))
    x, weight, dy = torch.randn(9, 12), torch.randn(40, 12), torch.randn(9, 40)
    by = Norm(torch.randn(12), 1e-5)
    adapters = [(rows, params.fused[0, "gate_up"]) for rows, params in runs]
    ours = x.clone().requires_grad_()
    y = linear(ours, weight, None, adapters, before=by)
    y.backward(dy)
    for rows, params in runs:
        alone = run_params(params.spec.rank)
        mine = x[rows].clone().requires_grad_()
        want = linear(mine, weight, None, [(slice(None), alone.fused[0, "gate_up"])], before=by)
        want.backward(dy[rows])
        torch.testing.assert_close(y[rows], want)
        torch.testing.assert_close(ours.grad[rows], mine.grad)
        torch.testing.assert_close(params.grad, alone.grad)
        assert alone.grad.any()
    plain = x[3:5].clone().requires_grad_()
    want = linear(plain, weight, None, [], before=by)
    want.backward(dy[3:5])
    torch.testing.assert_close(y[3:5], want)
    torch.testing.assert_close(ours.grad[3:5], plain.grad)


def test_head_in_several_blocks(monkeypatch) -> None:
    from plait.engines.torch.train import head

    monkeypatch.setattr(head, "BLOCK_BYTES", 4 * 50 * 16)
    torch.manual_seed(0)
    assert block_rows(50) == 16
    h, weight, targets = torch.randn(37, 12), torch.randn(50, 12), torch.randint(0, 50, (37,))
    d = torch.randn(37)
    ours, plain = h.clone().requires_grad_(), h.clone().requires_grad_()
    y = target_logprobs(ours, weight, targets)
    y.backward(d)
    want = torch.log_softmax(plain @ weight.T, -1).gather(1, targets[:, None])[:, 0]
    want.backward(d)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(ours.grad, plain.grad)


def test_head_with_several_targets_of_a_row(monkeypatch) -> None:
    from plait.engines.torch.train import head

    monkeypatch.setattr(head, "BLOCK_BYTES", 4 * 50 * 16)
    torch.manual_seed(0)
    h, weight = torch.randn(37, 12), torch.randn(50, 12)
    of = torch.arange(37).repeat_interleave(1 + torch.arange(37) % 3)
    targets, d = torch.randint(0, 50, (len(of),)), torch.randn(len(of))
    ours, plain = h.clone().requires_grad_(), h.clone().requires_grad_()
    y = target_logprobs(ours, weight, targets, of)
    y.backward(d)
    want = torch.log_softmax(plain @ weight.T, -1)[of, targets]
    want.backward(d)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(ours.grad, plain.grad)


def test_head_gives_log_probs_whose_probability_underflows() -> None:
    weight = torch.tensor([[0.0], [-500.0]])
    y = target_logprobs(torch.ones(1, 1), weight, torch.tensor([1]))
    assert y.item() == -500.0
