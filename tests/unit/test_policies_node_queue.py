"""Who was overtaken by how many is found without asking each of those that were placed."""

from test_policies_node_groups import waiting

from plait.policies import node_queue


class Number(int):
    """Counts how often it is compared."""

    n_compared = 0

    def __lt__(self, other: int) -> bool:
        Number.n_compared += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Number.n_compared += 1
        return int(self) > int(other)


def test_overtaking_is_counted_by_halving() -> None:
    runs = [waiting(f"r{i}", order=Number(i)) for i in range(200)]
    places = node_queue.enter({}, runs)
    bound = runs[1::2]
    left = node_queue.settle(places, runs, bound)
    assert {r: place["over"] for r, place in left.items()} == {
        run.run_id: sum(b.order > int(run.order) for b in bound) for run in runs[::2]
    }
    Number.n_compared = 0
    node_queue.settle(places, runs, bound)
    assert Number.n_compared < 20 * len(runs)
