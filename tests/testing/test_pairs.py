"""Of a product the gate takes less than all, and every two values meet in it."""

from __future__ import annotations

from itertools import combinations, product

from tests.testing.pairs import in_pairs


def test_every_two_values_meet_in_the_gate() -> None:
    axes = ["abc", "de", "fghi"]
    made = in_pairs(*axes)
    assert sorted(one.values for one in made) == sorted(product(*axes))
    in_gate = [one.values for one in made if not one.marks]
    met = {pair for values in in_gate for pair in combinations(values, 2)}
    assert met == {pair for two in combinations(axes, 2) for pair in product(*two)}
    assert len(in_gate) <= 13
