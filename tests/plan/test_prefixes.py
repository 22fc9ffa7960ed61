"""The prefix tree against brute force."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quire.plan.prefixes import PrefixTree, SharedPrefix
from quire.request import Ints

BLOCK = 2
few = st.integers(0, 2)
prompts_of_few_tokens = st.lists(st.lists(few, min_size=1, max_size=9), min_size=0, max_size=12)
# Whole blocks of two kinds: groups within groups within groups, which tokens by chance seldom make.
few_blocks = st.lists(st.integers(0, 1), min_size=3, max_size=5)
prompts_of_few_blocks = st.lists(
    few_blocks.map(lambda blocks: np.repeat(blocks, BLOCK).tolist()), min_size=8, max_size=16
)


def arrays(prompts: list[list[int]]) -> list[Ints]:
    return [np.array(p, np.int32) for p in prompts]


def common(a: list[int], b: list[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def tree_of(prompts: list[list[int]], salts: list[str] | None = None) -> PrefixTree:
    return PrefixTree.of(arrays(prompts), block_size=BLOCK, salts=salts or ())


def test_the_worked_example_of_the_module() -> None:
    tree = tree_of([[1, 2, 3, 4, 5], [9, 9], [1, 2, 3, 4, 7, 7]])
    assert tree.ranked.tolist() == [0, 2, 1]
    assert tree.common.tolist() == [0, 4, 0]
    assert tree.groups() == (SharedPrefix((0, 2), 2),)
    assert tree.cached_tokens([0, 2, 1]).tolist() == [0, 0, 4]


@given(prompts_of_few_tokens)
def test_any_two_prompts_agree_as_far_as_the_least_number_between_them(
    prompts: list[list[int]],
) -> None:
    tree = tree_of(prompts)
    ranked = tree.ranked.tolist()
    assert sorted(ranked) == list(range(len(prompts)))
    for a in range(len(ranked)):
        for b in range(a + 1, len(ranked)):
            expected = common(prompts[ranked[a]], prompts[ranked[b]])
            assert tree.common[a + 1 : b + 1].min() == expected


@given(prompts_of_few_tokens)
def test_equal_prompts_point_to_the_first_of_them(prompts: list[list[int]]) -> None:
    first = tree_of(prompts).first_equal().tolist()
    assert first == [prompts.index(p) for p in prompts]


@given(prompts_of_few_tokens, st.data())
def test_what_a_prefix_cache_will_hold(prompts: list[list[int]], data: st.DataObject) -> None:
    """Against a cache that is nothing but the set of all whole-block beginnings seen."""
    order = data.draw(st.permutations(range(len(prompts))))
    kept = data.draw(st.lists(st.booleans(), min_size=len(prompts), max_size=len(prompts)))
    order = [i for i in order if kept[i]]
    no_read = frozenset(data.draw(st.sets(st.sampled_from(range(len(prompts) or 1)))))
    salts = data.draw(
        st.lists(st.sampled_from(["", "a"]), min_size=len(prompts), max_size=len(prompts))
    )
    tree = tree_of(prompts, salts).keep(np.array(kept, np.bool_))
    found = tree.cached_tokens(order, no_read=no_read)
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for i in order:
        prompt, hits = prompts[i], 0
        while i not in no_read and (hits + 1) * BLOCK < len(prompt):
            if (salts[i], tuple(prompt[: (hits + 1) * BLOCK])) not in seen:
                break
            hits += 1
        assert found[i] == hits * BLOCK
        ends = range(BLOCK, len(prompt) + 1, BLOCK)
        seen |= {(salts[i], tuple(prompt[:end])) for end in ends}
    assert all(found[i] == 0 for i in range(len(prompts)) if i not in order)


@given(prompts_of_few_tokens)
def test_outer_groups_are_all_that_share_a_first_block(prompts: list[list[int]]) -> None:
    by_first: dict[tuple[int, ...], list[int]] = {}
    for i, prompt in enumerate(prompts):
        if len(prompt) >= BLOCK:
            by_first.setdefault(tuple(prompt[:BLOCK]), []).append(i)
    expected = set()
    for members in by_first.values():
        if len(members) > 1:
            shared = min(common(prompts[a], prompts[b]) for a in members for b in members)
            expected.add((tuple(members), shared // BLOCK))
    outer = [g for g in tree_of(prompts).groups() if g.parent is None]
    assert {(g.members, g.num_blocks) for g in outer} == expected


def most_saved(prompts: list[list[int]], members: list[int], base: int) -> int:
    """The most blocks beyond `base` that disjoint groups by common beginning can share."""
    deepest = max(len(prompts[m]) for m in members) // BLOCK
    best = 0
    for depth in range(base + 1, deepest + 1):
        parts: dict[tuple[int, ...], list[int]] = {}
        for m in members:
            if len(prompts[m]) >= depth * BLOCK:
                parts.setdefault(tuple(prompts[m][: depth * BLOCK]), []).append(m)
        whole = [p for p in parts.values() if len(p) == len(members)]
        if whole:
            best = max(best, (len(members) - 1) * (depth - base))
        else:
            return max(best, sum(most_saved(prompts, p, base) for p in parts.values()))
    return best


@given(prompts_of_few_tokens | prompts_of_few_blocks)
def test_inner_groups_save_the_most_and_do_not_overlap(prompts: list[list[int]]) -> None:
    groups = tree_of(prompts).groups()
    for number, outer in enumerate(g for g in groups if g.parent is None):
        inner = [g for g in groups if g.parent == number]
        members = [m for g in inner for m in g.members]
        assert len(members) == len(set(members)) and set(members) <= set(outer.members)
        for g in inner:
            shared = min(common(prompts[a], prompts[b]) for a in g.members for b in g.members)
            assert g.num_blocks == shared // BLOCK > outer.num_blocks
        saved = sum((len(g.members) - 1) * (g.num_blocks - outer.num_blocks) for g in inner)
        assert saved == most_saved(prompts, list(outer.members), outer.num_blocks)


def test_a_template_shared_by_all_leaves_room_for_the_groups_inside() -> None:
    template, tasks = [7] * 4, [[1] * 6, [2] * 6]
    prompts = [[*template, *tasks[i % 2], 50 + i] for i in range(8)]
    assert tree_of(prompts).groups() == (
        SharedPrefix(tuple(range(8)), 2),
        SharedPrefix((0, 2, 4, 6), 5, 0),
        SharedPrefix((1, 3, 5, 7), 5, 0),
    )


def test_prompts_with_different_salts_share_nothing() -> None:
    tree = tree_of([[1, 2, 3], [1, 2, 3], [1, 2, 3]], ["a", "b", "a"])
    assert tree.first_equal().tolist() == [0, 1, 0]
    assert tree.cached_tokens([0, 1, 2]).tolist() == [0, 0, 2]


def test_sixty_four_million_tokens_take_seconds(long_mode: bool) -> None:
    count = 65_536 if long_mode else 8_192
    rng = np.random.default_rng(0)
    preambles = rng.integers(0, 50_000, (57, 900)).astype(np.int32)
    tails = rng.integers(0, 50_000, (count, 80)).astype(np.int32)
    prompts = [np.concatenate([preambles[i % 57], tails[i]]) for i in range(count)]
    started = time.process_time()
    tree = PrefixTree.of(prompts, block_size=16)
    groups, cached = tree.groups(), tree.cached_tokens(np.arange(count, dtype=np.int32))
    assert time.process_time() - started < (15 if long_mode else 4)
    assert len(groups) == 57
    assert int(cached.sum()) >= (count - 57) * 896
