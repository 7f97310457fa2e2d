"""The order of a model's numbers, where some have been let go."""

from plait.service.order import MAX_MISSING, Order


def _taken(order: Order) -> list[int]:
    taken = []
    while (seq := order.take()) is not None:
        taken.append(seq)
    return taken


def _order(n: int) -> Order:
    order = Order()
    for seq in range(n):
        order.put(seq, 0.0)
    assert _taken(order) == list(range(n))
    return order


def test_what_is_not_at_hand_any_more_is_used_and_not_due_again() -> None:
    order = _order(8)
    order.put(9, 5.0)
    order.rewind(2, [3, 6, 9])
    assert order.n_waiting == 3
    assert order.gives_up_at() is None, "there is something to do"
    assert not order.put(4, 6.0), "it has been"
    assert _taken(order) == [3, 6]
    assert order.missing() == range(8, 9)
    order.put(8, 7.0)
    assert _taken(order) == [8, 9]


def test_what_was_let_go_is_not_counted_as_missing() -> None:
    n = 2 * MAX_MISSING
    order = _order(n)
    order.rewind(1, [1])
    assert not order.too_far(n + MAX_MISSING)
    assert order.too_far(n + MAX_MISSING + 2)


def test_a_line_begins_behind_what_was_committed() -> None:
    order = Order()
    order.rewind(2, [2, 3, 5], 1.0)  # what is read from the store, before it is known
    order.rewind(4, [5])
    assert all(order.used(seq) for seq in (0, 3, 5))
    assert order.missing() == range(4, 5)


def test_a_first_number_that_has_not_come_is_missing_in_a_new_life_too() -> None:
    order = Order()
    order.rewind(1, [1], 1.0)
    order.rewind(0, [1])
    assert order.missing() == range(1)
