"""More work never takes less time, on any device, model and slice."""

from hypothesis import given
from hypothesis import strategies as st

from plait.sim.costs.devices import DEVICES
from plait.sim.costs.models import MODELS
from plait.sim.costs.roofline import Roofline, costs_of

counts = st.integers(0, 3000)
some_costs = st.builds(
    costs_of,
    st.sampled_from(sorted(MODELS)),
    st.sampled_from(sorted(DEVICES)),
    st.sampled_from([1, 2, 4, 16]),
    weights=st.sampled_from(["lora", "full"]),
    replicas=st.sampled_from([1, 4, 32]),
)


@given(some_costs, counts, counts, st.integers(0, 8), st.integers(0, 3), counts, st.integers(0, 2))
def test_a_decode_step_grows_with_each_of_its_parts(
    costs: Roofline, rows: int, context: int, adapters: int, r: int, c: int, a: int
) -> None:
    less, more = (
        costs.decode_s(rows, context, adapters),
        costs.decode_s(rows + r, context + c, adapters + a),
    )
    assert 0 <= less <= more


@given(some_costs, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 256))
def test_so_do_prefill_training_and_reference(
    costs: Roofline, tokens: int, more: int, samples: int
) -> None:
    assert costs.prefill_s(tokens, 0, 0, samples) <= costs.prefill_s(
        tokens + more, more, 1, samples
    )
    assert costs.train_s(tokens, samples) <= costs.train_s(tokens + more, samples)
    assert costs.reference_s(tokens, samples) <= costs.reference_s(tokens + more, samples)
    assert costs.train_s(tokens, samples) >= costs.reference_s(tokens, samples)


@given(some_costs, st.integers(1, 2000), st.integers(1, 2000))
def test_one_step_of_all_rows_is_never_slower_than_two_steps(
    costs: Roofline, a: int, b: int
) -> None:
    together = costs.decode_s(a + b, 100 * (a + b))
    apart = costs.decode_s(a, 100 * a) + costs.decode_s(b, 100 * b)
    assert together <= apart * (1 + 1e-9)


@given(some_costs, st.integers(1, 10_000))
def test_nothing_beats_the_peak(costs: Roofline, tokens: int) -> None:
    assert costs.flops(tokens) <= costs.peak_flops * costs.decode_s(tokens, 0)
    assert costs.flops(tokens, tokens) <= costs.peak_flops * costs.train_s(tokens, 1)
    assert min(costs.sync_s(), costs.offload_s(), costs.load_s()) > 0
