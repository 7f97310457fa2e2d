"""Exact: arithmetic whose bits depend on the numbers alone, for deterministic mode.

A row's result must be the same whoever shares its batch, however a prompt is cut into chunks, and
with any number of threads; and the trainer's must be the sampler's. What that rests on (fp32 on a
CPU; ``check_exact`` tries it anew on every machine):

- a oneDNN product gives a row the same bits whatever the other rows, the threads and the layout of
  the weights, from two rows on (its AVX2 kernels, to which ``few_kernels`` keeps it: those for
  AVX-512 divide long sums by the rows and the threads);
- a batched product of few terms, with enough rows and whole vectors of columns, is one chain of
  fused multiply-adds per number, so that zeros behind the last term change nothing. Longer sums are
  chains of ``CHAIN`` terms, added in order;
- the softmax of whole vectors is not changed by further minus infinities;
- an elementwise function takes its last few numbers through other code than whole vectors, and
  threads divide the work anywhere: what differs there (an exponential) is given out in pieces that
  are not divided within a vector.

Shapes: B matrices of a batch, M rows, T keys, E head size; K key-value heads, G query heads to
each.
"""

import os
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from plait.core.errors import EngineError
from plait.engines.torch.packed import pack_matrix, packed_product

ISA = "ONEDNN_MAX_CPU_ISA"
"""What oneDNN reads before its first product."""

VECTOR = 16
"""Keys are padded to whole vectors: two of AVX2's, one of AVX-512's."""

ROWS = 8
"""Fewest rows of a batched product (measured with MKL: below, the kernel changes)."""

CHAIN = 160
"""Terms of one chain (measured: 192 are one still, 256 are not). As many as
``train.packing.SHORT``, so that a short sequence's attention is one chain."""

QUERIES = 128
"""Queries of one sequence at a time: their scores over 2,000 keys are 1 MB per head."""

UNDIVIDED = (1 << 15) - 1
"""Numbers that torch never divides among threads; more are divided into equal parts."""

LANES = 32
"""Numbers that elementwise functions take at a time: two of AVX-512's vectors."""


def padded(n: int) -> int:
    """``n`` rounded up to whole vectors."""
    return -(-n // VECTOR) * VECTOR


def linear(x_NI: torch.Tensor, w_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    """``x W^T + bias``, with weights in any layout."""
    n = x_NI.shape[0]
    if n == 1:
        x_NI = F.pad(x_NI, (0, 0, 0, 1))
    return packed_product(x_NI, w_OI, bias_O)[:n]


def product(
    a_BMK: torch.Tensor, b_BKN: torch.Tensor, start: torch.Tensor | None = None
) -> torch.Tensor:
    """``start + a b``; M at least ``ROWS``, N whole vectors."""
    first, *others = [slice(i, i + CHAIN) for i in range(0, a_BMK.shape[2], CHAIN)]
    if start is None:
        out = torch.bmm(a_BMK[..., first], b_BKN[:, first])
    else:
        out = torch.baddbmm(start, a_BMK[..., first], b_BKN[:, first])
    for terms in others:
        out.add_(torch.bmm(a_BMK[..., terms], b_BKN[:, terms]))
    return out


def attend(
    q_BME: torch.Tensor, k_BTE: torch.Tensor, v_BTE: torch.Tensor, mask_BMT: torch.Tensor
) -> torch.Tensor:
    """``out_BME`` of scaled queries; T whole vectors, what a query does not see minus infinity."""
    m, e = q_BME.shape[1:]
    if m < ROWS:
        q_BME = F.pad(q_BME, (0, 0, 0, ROWS - m))
    if mask_BMT.shape[1] not in (1, q_BME.shape[1]):
        mask_BMT = F.pad(mask_BMT, (0, 0, 0, ROWS - m))
    scores = product(q_BME, k_BTE.transpose(1, 2), mask_BMT)
    weights = torch.softmax(scores, -1, out=scores)
    if e % VECTOR:
        v_BTE = F.pad(v_BTE, (0, -e % VECTOR))
    return product(weights, v_BTE)[:, :m, :e]


def causal(
    q_KGNE: torch.Tensor, k_KTE: torch.Tensor, v_KTE: torch.Tensor, places_N: torch.Tensor
) -> torch.Tensor:
    """``out_KGNE`` of one sequence's queries at ``places_N``, over its keys from place 0 up to each
    query's own; T whole vectors."""
    k, g, n, e = q_KGNE.shape
    out = torch.empty_like(q_KGNE, memory_format=torch.contiguous_format)
    for at in range(0, n, QUERIES):
        rows = slice(at, at + QUERIES)
        place = places_N[rows, None]
        t = padded(int(place.max()) + 1)
        mask = torch.zeros(len(place), t).masked_fill_(torch.arange(t) > place, -torch.inf)
        q = (q_KGNE[:, :, rows] * e**-0.5).reshape(k, -1, e)
        found = attend(q, k_KTE[:, :t], v_KTE[:, :t], mask.repeat(g, 1).expand(k, -1, -1))
        out[:, :, rows] = found.reshape(k, g, -1, e)
    return out


def silu(x_NJ: torch.Tensor) -> torch.Tensor:
    """``x · sigmoid(x)``."""
    out = torch.empty(x_NJ.shape, dtype=x_NJ.dtype)
    for rows in pieces(x_NJ):
        torch.ops.aten.silu.out(x_NJ[rows], out=out[rows])
    return out


def pieces(x_NJ: torch.Tensor) -> Iterator[slice]:
    """Rows to give to an elementwise function at a time, so that no thread's part ends within a
    vector: all of them where the division comes out even, else so few that there is none."""
    n, width = x_NJ.shape
    total = n * width
    threads = min(torch.get_num_threads(), -(-total // (UNDIVIDED + 1)))
    even = width % LANES == 0 and -(-total // max(1, threads)) % LANES == 0
    step = n if even else max(1, UNDIVIDED // width)
    return (slice(i, i + step) for i in range(0, n, step))


def few_kernels() -> None:
    """Keep oneDNN to the kernels that this module rests on: in time if it has not computed anything
    in this process."""
    os.environ.setdefault(ISA, "AVX2")


def check_exact(dtype: torch.dtype, device: str) -> None:
    """EngineError if this machine's kernels do not do what this module rests on."""
    few_kernels()
    if dtype != torch.float32 or torch.device(device).type != "cpu":
        raise EngineError(f"deterministic mode is for fp32 on a CPU, not {dtype} on {device}")
    if not torch.backends.mkldnn.is_available():
        raise EngineError("deterministic mode needs a torch with oneDNN: run without it")
    threads = torch.get_num_threads()
    try:
        wrong = [name for name, holds in _CHECKS.items() if not holds(threads)]
    finally:
        torch.set_num_threads(threads)
    if wrong:
        raise EngineError(
            f"deterministic mode is not possible with this processor and build of torch "
            f"({', '.join(wrong)} differ): run without it, or begin with {ISA}=AVX2 in the "
            "environment"
        )


def _same(threads: int, work: Callable[[], torch.Tensor]) -> bool:
    """True if the result has the same bits with one thread, with two and with all."""
    found = []
    for n in (1, 2, threads):
        torch.set_num_threads(n)
        found.append(work())
    return all(torch.equal(f, found[0]) for f in found)


def _linear_holds(threads: int) -> bool:
    g = torch.Generator().manual_seed(0)
    # The last two: an adapter of the head, whose sums are as long as the vocabulary.
    for o, i in ((960, 576), (576, 1536), (24, 576), (576, 8), (32_768, 8), (8, 32_768)):
        x, w = torch.randn(48, i, generator=g), torch.randn(o, i, generator=g)
        packed, whole = pack_matrix(w), linear(x, w, None)
        parts = (linear(x[:1], w, None), linear(x[1:3], w.t().contiguous().t(), None))
        # The sampler packs what the trainer may not, and gives it single rows.
        rows = (packed_product(x[:1], packed), packed_product(x[1:3], packed))
        together = all(torch.equal(torch.cat(found), whole[:3]) for found in (parts, rows))
        if not (together and _same(threads, lambda x=x, w=w: linear(x, w, None))):
            return False
        if not _same(threads, lambda x=x, packed=packed: packed_product(x, packed)):
            return False
    return True


def _product_holds(threads: int) -> bool:
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, 96, CHAIN, generator=g), torch.randn(5, CHAIN, 64, generator=g)
    for terms in (VECTOR, 64, CHAIN):
        few = torch.bmm(a[:1, :ROWS, :terms], b[:1, :terms])
        a_0 = a.clone()
        a_0[..., terms:] = 0
        if not torch.equal(few, torch.bmm(a_0, b)[:1, :ROWS]):
            return False
        narrow = torch.bmm(a[:2, :ROWS, :terms], b[:2, :terms, :VECTOR])
        if not torch.equal(narrow, torch.bmm(a_0, b)[:2, :ROWS, :VECTOR]):
            return False
    return _same(threads, lambda: torch.bmm(a, b))


def _softmax_holds(threads: int) -> bool:
    x = torch.randn(40, 7 * VECTOR, generator=torch.Generator().manual_seed(0))
    wide = F.pad(x, (0, 9 * VECTOR), value=-torch.inf)
    return torch.equal(torch.softmax(wide, -1)[:, : 7 * VECTOR], torch.softmax(x, -1))


_CHECKS = {"products": _linear_holds, "batched products": _product_holds, "softmax": _softmax_holds}
