"""Continuations of one context as a tree, so that none of their tokens is computed twice.

A node is a beginning that continuations may share; the root is the end of the context. Every node
that is followed by a token is computed once. There the logprob of each token that follows it is
scored, all from one line of logits. A path is what one row computes: nodes that follow each other.
The first path is the longest. Every other path leaves an earlier path at a branch, shares that
path's blocks up to there, and is no longer than it.

Continuations [4 5 6], [4 5 7], [4 8 1] and [9]:
    path 0   computes 4 5      scores 4 and 9 after the context, 5 and 8 after 4, 6 and 7 after 5
    path 1   computes 8        leaves path 0 after one token, scores 1 after 8
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from quire.request import Ints

ROOT = 0


@dataclass(frozen=True, slots=True)
class Path:
    """What one row computes and scores.

    `tokens` are all tokens after the context; the first `branch` of them are shared with the path
    that it leaves. Target i is the token targets[i], scored after the first depths[i] of `tokens`;
    depths rise.
    """

    tokens: Ints
    branch: int
    depths: Ints
    targets: Ints


@dataclass(frozen=True, slots=True)
class ScoreTree:
    """`children[p]` are the paths that leave path p, by their `branch`. Token k of continuation c
    is target places[c][k][1] of path places[c][k][0]."""

    paths: tuple[Path, ...]
    children: tuple[tuple[int, ...], ...]
    places: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, continuations: Many[Ints]) -> ScoreTree:
        """The tree of these continuations, none of which is empty."""
        growing = _Growing()
        listed = [ids.tolist() for ids in continuations]
        for i in sorted(range(len(listed)), key=lambda i: -len(listed[i])):
            growing.add(listed[i])
        return growing.tree(listed)


class _Growing:
    """A tree while continuations are added, none longer than the one before."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, int], int] = {}  # (node, token) -> the node after it
        self._followers: list[dict[int, None]] = [{}]  # of each node the tokens to score
        self._path_of = [0]  # of each node
        self._paths: list[tuple[list[int], int, int, list[int]]] = []  # tokens, branch, parent, own

    def add(self, ids: list[int]) -> None:
        computed, nodes = ids[:-1], [ROOT]
        while len(nodes) <= len(computed):
            found = self._next.get((nodes[-1], computed[len(nodes) - 1]))
            if found is None:
                break
            nodes.append(found)
        branch = len(nodes) - 1
        if branch < len(computed) or not self._paths:
            own = [self._make(nodes, computed[depth]) for depth in range(branch, len(computed))]
            parent = self._path_of[nodes[branch]]
            for node in own:
                self._path_of[node] = len(self._paths)
            self._paths.append((computed, branch, parent, own))
        for node, token in zip(nodes, ids, strict=True):
            self._followers[node][token] = None

    def _make(self, nodes: list[int], token: int) -> int:
        """Add a node for `token` after the last of `nodes`, and append it to them."""
        node = self._next[nodes[-1], token] = len(self._path_of)
        self._path_of.append(0)
        self._followers.append({})
        nodes.append(node)
        return node

    def tree(self, listed: list[list[int]]) -> ScoreTree:
        paths, where = [], {}
        children: list[list[int]] = [[] for _ in self._paths]
        for number, (tokens, branch, parent, own) in enumerate(self._paths):
            depths: list[int] = []
            targets: list[int] = []
            if number:
                children[parent].append(number)
            nodes = enumerate(own, start=branch + 1) if number else enumerate([ROOT, *own])
            for depth, node in nodes:
                for token in self._followers[node]:
                    where[node, token] = number, len(targets)
                    depths.append(depth)
                    targets.append(token)
            arrays = (np.array(numbers, np.int32) for numbers in (depths, targets))
            paths.append(Path(np.array(tokens, np.int32), branch, *arrays))
        for some in children:
            some.sort(key=lambda p: self._paths[p][1])
        places = []
        for ids in listed:
            nodes_of = [ROOT]
            for token in ids[:-1]:
                nodes_of.append(self._next[nodes_of[-1], token])
            places.append(tuple(where[n, t] for n, t in zip(nodes_of, ids, strict=True)))
        return ScoreTree(tuple(paths), tuple(map(tuple, children)), tuple(places))
