import pytest
import torch
import torch.nn.functional as F
from random_models import random_model

from plait.engines.torch.packed import make_linear, one_row, plain_rows
from plait.engines.torch.weights import Weights, load_weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    folder = tmp_path_factory.mktemp("packed")
    return load_weights(random_model(folder / "model", "llama-tied-bias"), cache=folder)


def test_every_matrix_is_packed_and_gives_the_plain_product(weights: Weights) -> None:
    linear, least_rows = make_linear(weights)
    assert least_rows is one_row
    layer = weights.layers[1]
    cases = [(layer.qkv, layer.qkv_bias), (layer.down, layer.down_bias), (weights.head, None)]
    for w, bias in cases:
        x = torch.randn(5, w.shape[1])
        torch.testing.assert_close(linear(x, w, bias), F.linear(x, w, bias), atol=1e-5, rtol=1e-5)


def test_a_packed_row_has_the_same_bits_among_any_rows_and_threads(weights: Weights) -> None:
    linear, _ = make_linear(weights)
    n_threads = torch.get_num_threads()
    w = weights.layers[0].gate_up
    x = torch.randn(70, w.shape[1])
    want = linear(x, w, None)
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for n in (1, 2, 3, 7, 8, 33, 70):
                assert torch.equal(linear(x[-n:].contiguous(), w, None), want[-n:])
    finally:
        torch.set_num_threads(n_threads)


def test_without_layers_only_the_head_is_packed(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear, least_rows = make_linear(weights, layers=False)
    assert least_rows is plain_rows
    plain: list[torch.Tensor] = []

    def product(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        plain.append(w)
        return x @ w.T if bias is None else x @ w.T + bias

    monkeypatch.setattr("plait.engines.torch.packed.F.linear", product)
    layer = weights.layers[1]
    for w, bias in [
        (layer.qkv, layer.qkv_bias),
        (layer.down, layer.down_bias),
        (weights.head, None),
    ]:
        linear(torch.randn(5, w.shape[1]), w, bias)
    assert [id(w) for w in plain] == [id(layer.qkv), id(layer.down)]
