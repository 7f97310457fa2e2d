from plait.profiles.tokens import distinct_tokens


def test_a_groups_prompt_counts_once() -> None:
    prompt = list(range(34))
    group = [[*prompt, 100 + i, *range(31)] for i in range(4)]
    assert distinct_tokens(group) == 34 + 4 * 32
    assert distinct_tokens([*group, [7] * 10, [7] * 4]) == 34 + 4 * 32 + 10


def test_of_nothing_and_of_one() -> None:
    assert distinct_tokens([]) == distinct_tokens([[]]) == 0
    assert distinct_tokens([[1, 2, 3]]) == 3
    assert distinct_tokens([(1, 2), [1, 2]]) == 2
