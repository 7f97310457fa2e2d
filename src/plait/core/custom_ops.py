"""Custom ops: the operations that a custom loss may consist of, by name, and what each may make.

This is the whole list: what is not on it is refused when a loss is created, so nothing that a
client sends is ever looked up anywhere. Left out on purpose: whatever writes into its arguments,
leaves torch (``item``), draws random numbers, makes a value whose size a *value* decides
(``bincount``, ``one_hot``), or takes far longer than its values are large (``svd``, ``cumprod``'s
gradient). The functions themselves are the engine's.

A name here has one of the prefixes ``torch``, ``functional``, ``special``, ``method``,
``operator``, ``math``; a traced graph writes several of them in more than one way (``canonical``).
"""

from enum import StrEnum


class Makes(StrEnum):
    """What an operation makes, at most: what must be known before it is carried out."""

    EACH = "each"
    """As much as its arguments, broadcast together."""
    SLOWLY = "slowly"
    """The same, at many times the time: it sorts, sums a series, or takes short rows one by one."""
    VIEW = "view"
    """As much as its arguments hold."""
    GROWN = "grown"
    """More than its arguments: a rule of its own says how much."""
    PICKED = "picked"
    """What its indices say: rules of their own."""
    FACT = "fact"
    """A number of Python's, from a shape or from other such numbers."""


_EACH = """
abs absolute acos acosh add addcdiv addcmul all amax amin any argmax argmin asin asinh atan atan2
atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min clip clone
copysign cos cosh count_nonzero cumsum detach div divide eq erf erfc exp exp2 expm1 fix flip floor
floor_divide fmax fmin fmod frac ge greater greater_equal gt heaviside hypot isclose isfinite
isinf isnan isneginf isposinf le lerp less less_equal log log10 log1p log2 log_softmax logaddexp
logaddexp2 logical_and logical_not logical_or logical_xor logsumexp lt masked_fill masked_select
max maximum mean min minimum mul multiply nan_to_num nanmean nansum ne neg negative not_equal
positive pow prod reciprocal relu remainder roll round rsqrt sgn sigmoid sign signbit sin sinh
softmax sqrt square sub subtract sum tan tanh tril triu true_divide trunc where xlogy
"""
_SLOWLY = """
argsort cummax cummin digamma erfinv kthvalue lgamma logcumsumexp logit median norm sort std topk
var
"""
_VIEW = """
diagonal flatten movedim narrow permute ravel reshape select squeeze swapaxes t transpose unsqueeze
"""
_GROWN = "bmm dot ger matmul mm mv outer tile"
_PICKED = "gather index_add index_select scatter scatter_add take"
_BOTH = {
    Makes.EACH: _EACH,
    Makes.SLOWLY: _SLOWLY,
    Makes.VIEW: _VIEW,
    Makes.GROWN: _GROWN,
    Makes.PICKED: _PICKED,
}
"""What is a function of ``torch`` and a method of a tensor."""

_ALONE = {
    "torch": {
        Makes.EACH: "full_like ones_like zeros_like",
        Makes.SLOWLY: "cosine_similarity std_mean var_mean",
        Makes.GROWN: "broadcast_to cat concat stack",
    },
    "method": {
        Makes.EACH: "bool cpu double float int long to type_as",
        Makes.VIEW: "contiguous reshape_as view view_as",
        Makes.GROWN: "broadcast_to expand expand_as new_full new_ones new_zeros repeat",
        Makes.FACT: "dim ndimension nelement numel size",
    },
    "functional": {
        Makes.EACH: "binary_cross_entropy binary_cross_entropy_with_logits gelu huber_loss kl_div "
        "l1_loss log_softmax logsigmoid mse_loss relu sigmoid silu smooth_l1_loss softmax softmin "
        "softplus tanh",
        Makes.SLOWLY: "cosine_similarity normalize",
        Makes.GROWN: "pad",
    },
    "special": {
        Makes.EACH: "entr erf erfc exp2 expit expm1 log1p log_softmax logsumexp ndtr softmax "
        "xlog1py xlogy",
        Makes.SLOWLY: "digamma erfinv logit gammaln log_ndtr ndtri",
    },
    "operator": {
        Makes.EACH: "abs add and_ eq floordiv ge gt invert le lt mod mul ne neg or_ pos pow sub "
        "truediv xor",
        Makes.GROWN: "matmul",
        Makes.PICKED: "getitem",
    },
    "math": {
        Makes.FACT: "acos asin atan atan2 ceil copysign cos cosh erf erfc exp expm1 fabs floor "
        "fmod hypot isfinite isinf isnan log log10 log1p log2 pow sin sinh sqrt tan tanh trunc"
    },
}

GETATTR = "getattr"
ATTRIBUTES = ("T", "device", "dtype", "indices", "mT", "ndim", "shape", "values")
"""Of a tensor, or of a pair like the one that ``sort`` gives."""
TEXTS = ("batchmean", "constant", "cpu", "floor", "fro", "mean", "none", "sum", "trunc")
"""Words that say how (``reduction``, ``rounding_mode``, …); no other text is an argument."""
DTYPES = ("bool", "float", "float32", "float64", "double", "int", "int32", "int64", "long")
REFUSED_OPTIONS = frozenset(
    ["generator", "layout", "memory_format", "out", "output_size", "pin_memory", "requires_grad"]
)
"""Keywords that write elsewhere, draw, or say how memory is laid out."""


def _table() -> dict[str, Makes]:
    found = {GETATTR: Makes.FACT}
    for makes, names in _BOTH.items():
        for name in names.split():
            found[f"torch.{name}"] = found[f"method.{name}"] = makes
    for prefix, by_kind in _ALONE.items():
        for makes, names in by_kind.items():
            found |= {f"{prefix}.{name}": makes for name in names.split()}
    return found


OPERATIONS = _table()
"""Every operation there is."""

_PREFIXES = (
    ("torch.nn.functional.", "functional."),
    ("torch._C._nn.", "functional."),
    ("torch._C._special.special_", "special."),
    ("torch.special.", "special."),
    ("torch.functional.", "torch."),
    ("torch.Tensor.", "method."),
    ("torch.", "torch."),
    ("operator.", "operator."),
    ("math.", "math."),
)
"""How graphs write them, the longest first. Where torch defines a function is its own affair."""
_ALIASES = {"functional.log_sigmoid": "functional.logsigmoid"}


def canonical(function: str) -> str | None:
    """The name here of a function that a graph names; None if it is none of these."""
    if function == GETATTR:
        return GETATTR
    for written, ours in _PREFIXES:
        if function.startswith(written):
            name = ours + function.removeprefix(written)
            name = _ALIASES.get(name, name)
            return name if name in OPERATIONS else None
    return None
