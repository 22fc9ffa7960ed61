"""Continuations as a tree: every beginning is computed once, every token is scored once."""

from __future__ import annotations

import random

import numpy as np

from quire.scheduler.score_tree import ScoreTree


def tree_of(*continuations: list[int]) -> ScoreTree:
    return ScoreTree.of([np.array(ids, np.int32) for ids in continuations])


def check(continuations: list[list[int]]) -> None:
    tree = tree_of(*continuations)
    beginnings = {tuple(ids[:k]) for ids in continuations for k in range(1, len(ids))}
    computed = [
        tuple(path.tokens[:k].tolist())
        for path in tree.paths
        for k in range(path.branch + 1, len(path.tokens) + 1)
    ]
    assert sorted(computed) == sorted(beginnings), "each once, and nothing else"
    scored = [
        (*path.tokens[:depth].tolist(), token)
        for path in tree.paths
        for depth, token in zip(path.depths.tolist(), path.targets.tolist(), strict=True)
    ]
    assert sorted(scored) == sorted(
        {tuple(i[: k + 1]) for i in continuations for k in range(len(i))}
    )
    for ids, places in zip(continuations, tree.places, strict=True):
        found = [
            (*tree.paths[p].tokens[: tree.paths[p].depths[line]], tree.paths[p].targets[line])
            for p, line in places
        ]
        assert found == [tuple(ids[: k + 1]) for k in range(len(ids))]
    left = {0}
    for parent, some in enumerate(tree.children):
        branches = [tree.paths[child].branch for child in some]
        assert branches == sorted(branches) and not left & set(some) - {0}
        left |= set(some)
        for child in some:
            path, before = tree.paths[child], tree.paths[parent]
            assert path.branch < len(before.tokens), "a path goes on after the last that leaves it"
            assert (path.tokens[: path.branch] == before.tokens[: path.branch]).all()
            assert (np.diff(path.depths) >= 0).all() and path.depths[0] == path.branch + 1
    assert left == set(range(len(tree.paths)))


def test_the_example_of_its_page() -> None:
    tree = tree_of([4, 5, 6], [4, 5, 7], [4, 8, 1], [9])
    first, second = tree.paths
    assert first.tokens.tolist() == [4, 5] and second.tokens.tolist() == [4, 8]
    assert list(zip(first.depths, first.targets, strict=True)) == [
        (0, 4), (0, 9), (1, 5), (1, 8), (2, 6), (2, 7)
    ]  # fmt: skip
    assert second.branch == 1 and tree.children == ((1,), ())


def test_one_token_each_is_one_path_that_computes_nothing() -> None:
    tree = tree_of([3], [1], [2], [3])
    assert len(tree.paths) == 1 and len(tree.paths[0].tokens) == 0
    assert tree.paths[0].targets.tolist() == [3, 1, 2]


def test_random_trees() -> None:
    rng = random.Random(5)
    for _ in range(300):
        width = rng.choice([1, 2, 3, 9])
        count = rng.choice([1, 2, 5, 40])
        check([[rng.randrange(width) for _ in range(rng.randint(1, 6))] for _ in range(count)])


def test_a_thousand_with_one_beginning_share_it() -> None:
    tree = tree_of(*([1, 2, 3, i, 4] for i in range(1000)))
    assert sum(len(path.tokens) - path.branch for path in tree.paths) == 3 + 1000
