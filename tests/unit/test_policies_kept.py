import copy
import json
import pickle

from plait.policies.kept import Kept, take


class Index:
    pass


def test_an_index_is_taken_once_and_by_its_kind() -> None:
    index = Index()
    state = Kept({"a": 1}, index)
    assert take(state, str) is None
    assert take(state, Index) is index
    assert take(state, Index) is None
    assert take({"a": 1}, Index) is None


def test_copies_and_json_hold_the_values_alone() -> None:
    state = Kept({"a": [1]}, Index())
    assert state == {"a": [1]}
    for other in (copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert type(other) is dict
        assert other == state
    assert json.loads(json.dumps(state)) == state
