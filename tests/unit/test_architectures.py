"""The pairwise cover of a product of choices: few cases, and every two choices meet in one of them."""

import itertools

from tests.architectures import covering

CHOICES = {
    "cell": ("lstm", "gru", "rnn"),
    "score": ("dot", "general", "none"),
    "depth": (1, 2),
    "feeding": (False, True),
}
CASES = {
    "-".join(map(str, values)): list(zip(CHOICES, values, strict=True))
    for values in itertools.product(*CHOICES.values())
    if not (values[1] == "none" and values[3])
}


def test_all_choices_that_can_meet_do() -> None:
    chosen = covering(CASES)

    def meetings(names: object) -> set[frozenset[object]]:
        return {frozenset(few) for name in names for few in itertools.combinations(CASES[name], 2)}

    assert meetings(chosen) == meetings(CASES)
    assert len(chosen) == len(set(chosen)) < len(CASES)


def test_pairs_need_few_cases() -> None:
    """No fewer than the two largest choices have pairs, and not many more."""
    assert 3 * 3 <= len(covering(CASES)) <= 11
