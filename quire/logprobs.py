"""Log-probabilities as the caller sees them: a list of dicts, or FlatLogprobs for many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSequence
from dataclasses import dataclass, field
from typing import NoReturn, overload


@dataclass(slots=True)
class Logprob:
    """One token's log-probability; rank 1 is the likeliest token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


LogprobsOnePosition = dict[int, Logprob]


@dataclass(slots=True)
class FlatLogprobs(MutableSequence[LogprobsOnePosition | None]):
    """The same as a list of dicts, held in a few flat lists: far fewer objects to collect.

    Position i owns the entries start_indices[i] .. end_indices[i]. The two positions
    {5: Logprob(-0.1, 1), 7: Logprob(-2.5, 2)} and None are start_indices [0, 2],
    end_indices [2, 2], token_ids [5, 7], logprobs [-0.1, -2.5], ranks [1, 2].
    It grows at the end; what is there cannot be changed.
    """

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    decoded_tokens: list[str | None] = field(default_factory=list)

    def append(self, value: LogprobsOnePosition | None) -> None:
        entries = value or {}
        self.append_fast(
            list(entries),
            [entry.logprob for entry in entries.values()],
            [entry.rank for entry in entries.values()],
            [entry.decoded_token for entry in entries.values()],
        )

    def append_fast(
        self,
        token_ids: list[int],
        logprobs: list[float],
        ranks: Iterable[int | None],
        decoded_tokens: Iterable[str | None],
    ) -> None:
        """Append a position without making its Logprob objects; `ranks` and `decoded_tokens`
        may be longer than `token_ids`."""
        self.start_indices.append(len(self.token_ids))
        for token, logprob, rank, decoded in zip(
            token_ids, logprobs, ranks, decoded_tokens, strict=False
        ):
            self.token_ids.append(token)
            self.logprobs.append(logprob)
            self.ranks.append(rank)
            self.decoded_tokens.append(decoded)
        self.end_indices.append(len(self.token_ids))

    def extend(self, values: Iterable[LogprobsOnePosition | None]) -> None:
        for value in values:
            self.append(value)

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, index: int) -> LogprobsOnePosition: ...
    @overload
    def __getitem__(self, index: slice) -> FlatLogprobs: ...
    def __getitem__(self, index: int | slice) -> LogprobsOnePosition | FlatLogprobs:
        """A position as a dict, empty where nothing is known; or some positions, flat again."""
        if isinstance(index, slice):
            chosen = FlatLogprobs()
            chosen.extend(self[i] for i in range(len(self))[index])
            return chosen
        entries = range(self.start_indices[index], self.end_indices[index])
        return {
            self.token_ids[i]: Logprob(self.logprobs[i], self.ranks[i], self.decoded_tokens[i])
            for i in entries
        }

    def __iter__(self) -> Iterator[LogprobsOnePosition]:
        return (self[i] for i in range(len(self)))

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise TypeError("FlatLogprobs cannot be changed in place; list(it) gives a list of dicts.")

    def __delitem__(self, index: object) -> NoReturn:
        raise TypeError("FlatLogprobs cannot be changed in place; list(it) gives a list of dicts.")

    def insert(self, index: int, value: object) -> NoReturn:
        raise TypeError("FlatLogprobs only grows at its end: use append.")


PromptLogprobs = FlatLogprobs | list[LogprobsOnePosition | None]
SampleLogprobs = FlatLogprobs | list[LogprobsOnePosition]
