"""Logprobs that do not fit into an entry (drawn_scores.py): of more tokens, of the whole
vocabulary, or of named ids. Torch computes them after each draw, from the lines that want them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.executor.cuda.device_rows import DeviceColumns, MoreAsked
from quire.executor.cuda.host_copies import HostCopies, HostCopy
from quire.executor.cuda.upload import Upload
from quire.request import Ints
from quire.sampling.logprobs import likeliest, log_probabilities
from quire.sampling.scan import count_larger
from quire.step import DrawnScores, Scores

AT_ONCE = 1 << 26  # most logits that are scored at once


@dataclass(frozen=True, slots=True)
class Group:
    """Lines of a block that want the same, in an upload under this name."""

    name: str
    asked: MoreAsked
    lines: Ints  # their lines in the result


@dataclass(frozen=True, slots=True)
class MoreCopy:
    """Scores of the tokens that lines of a result drew in step `step`, being copied to the host."""

    lines: Ints
    step: int
    columns: tuple[HostCopy, ...]

    def read(self, tokens: Ints, counts: Ints) -> Iterator[DrawnScores]:
        """The scores of real tokens: row i of tokens [rows, K] has counts[i] of them."""
        real = np.flatnonzero(counts[self.lines] > self.step)
        if len(real):
            columns: list[Any] = [column.read()[real] for column in self.columns]
            lines = self.lines[real]
            yield DrawnScores(lines, Scores(tokens[lines, self.step], *columns))


class MoreScores:
    """Finds the lines that want more, scores them, and copies the scores to the host."""

    def __init__(self, columns: DeviceColumns, host_copies: HostCopies) -> None:
        self._columns, self._host_copies = columns, host_copies

    def pack(self, upload: Upload, name: str, rows: Ints, first: int = 0) -> list[Group]:
        """The groups of a block whose lines draw for these rows and begin with line `first` of the
        result. Called before the upload is sent."""
        found: dict[MoreAsked, list[int]] = {}
        for line in np.flatnonzero(self._columns.asks_more[rows]).tolist():
            found.setdefault(self._columns.more_asked[int(rows[line])], []).append(line)
        groups = []
        for number, (asked, lines) in enumerate(found.items()):
            numbers = np.array(lines, np.int32) + np.int32(first)
            group = Group(f"more {name} {number}", asked, numbers)
            upload.add(group.name, lines)
            upload.add(f"{group.name} ids", list(asked.ids))
            groups.append(group)
        return groups

    def score(
        self, groups: Sequence[Group], upload: Upload, logits: Tensor, tokens: Tensor, step: int
    ) -> list[MoreCopy]:
        """Called after the draw, with logits [lines, vocab or more] of the block."""
        copies, vocab = [], self._columns.vocab_size
        some = max(1, AT_ONCE // vocab)
        for group in groups:
            places, ids = upload.take(group.name), upload.take(f"{group.name} ids")
            for at in range(0, len(group.lines), some):
                mine = places[at : at + some]
                values = logits.index_select(0, mine)[:, :vocab]
                values = (
                    values.float() if self._columns.scores_as_logits else log_probabilities(values)
                )
                made = self._scored(values, tokens.index_select(0, mine), group.asked, ids)
                sent = tuple(self._host_copies.send(column) for column in made)
                copies.append(MoreCopy(group.lines[at : at + some], step, sent))
        return copies

    @staticmethod
    def _scored(
        values: Tensor, tokens: Tensor, asked: MoreAsked, ids: Tensor
    ) -> tuple[Tensor, ...]:
        """Logprob, rank, then ids and logprobs of the others [lines, k]."""
        own = values.gather(1, tokens[:, None])
        ranks = count_larger(values, own) + 1
        others = ids.expand(len(values), -1) if asked.ids else likeliest(values, asked.num_top)
        around = values.gather(1, others)
        return own[:, 0], ranks.to(torch.int32), others.to(torch.int32), around
