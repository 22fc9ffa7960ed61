"""Log-probabilities as the caller sees them: a list of dicts, FlatLogprobs where that was asked
for, LazyLogprobs where a position has very many tokens. Outputs keep them as arrays (Unread) until
they are read."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Any, Generic, NoReturn, TypeVar, overload

import msgspec


class Logprob(msgspec.Struct, gc=False):
    """One token's log-probability; rank 1 is the likeliest token.

    A batch may have millions. Making one as a struct takes a third of the time of a dataclass, and
    the garbage collector skips it (gc=False), as it holds no references to follow.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# `dataclasses.asdict` and `fields` see a dataclass, as callers know it from elsewhere.
Logprob.__dataclass_fields__ = make_dataclass(  # type: ignore[attr-defined]
    "Logprob", [("logprob", float), *((name, Any, None) for name in ("rank", "decoded_token"))]
).__dataclass_fields__

LogprobsOnePosition = dict[int, Logprob]


@dataclass(slots=True)
class FlatLogprobs(MutableSequence[LogprobsOnePosition | None]):
    """Acts as a list of dicts, but is held in a few flat lists: far fewer objects to collect.

    Position i owns the entries start_indices[i] .. end_indices[i]. The two positions
    {5: Logprob(-0.1, 1), 7: Logprob(-2.5, 2)} and None are start_indices [0, 2],
    end_indices [2, 2], token_ids [5, 7], logprobs [-0.1, -2.5], ranks [1, 2].
    It can be appended to, but not changed.
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
        """A position as a dict, empty where it is None; a slice gives another FlatLogprobs."""
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


Position = TypeVar("Position", covariant=True)


class LazyLogprobs(Sequence[Position]):
    """Acts as a list of dicts for positions with very many tokens: a dict of a vocabulary is 15 MB.

    Each position's dict is made anew when it is asked for, so that going through them holds one
    at a time; `list(it)` makes them all.
    """

    __slots__ = ("_length", "_make")

    def __init__(self, length: int, make: Callable[[int], Position]) -> None:
        self._length, self._make = length, make

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Position: ...
    @overload
    def __getitem__(self, index: slice) -> LazyLogprobs[Position]: ...
    def __getitem__(self, index: int | slice) -> Position | LazyLogprobs[Position]:
        chosen = range(self._length)[index]
        if isinstance(chosen, int):
            return self._make(chosen)
        return LazyLogprobs(len(chosen), lambda i: self._make(chosen[i]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"LazyLogprobs({self._length} positions)"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, and what is sent to another process, is a list of dicts."""
        return list, (list(self),)


PromptLogprobs = (
    FlatLogprobs | LazyLogprobs[LogprobsOnePosition | None] | list[LogprobsOnePosition | None]
)
SampleLogprobs = FlatLogprobs | LazyLogprobs[LogprobsOnePosition] | list[LogprobsOnePosition]


class Unread(ABC):
    """Logprobs of successive positions, as arrays: to make dicts that are never read would take
    longer than to make the tokens themselves."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def since(self, first: int) -> Unread:
        """These logprobs without the positions before `first`."""

    @abstractmethod
    def followed_by(self, later: Unread) -> Unread:
        """These logprobs and then those of `later`, the next part of the same answer."""

    @abstractmethod
    def read(self) -> Any:
        """The logprobs in the form the caller sees."""

    def __reduce__(self) -> tuple[Any, ...]:
        """They are read before they go to another process: the tokens' texts are only here."""
        return _itself, (self.read(),)


class MadeDicts:
    """The dicts of an answer that is read while it grows: each dict is made once."""

    def __init__(self) -> None:
        self._dicts: list[LogprobsOnePosition] = []
        self._growing = threading.Lock()  # outputs may be read on any thread

    def first(
        self, count: int, make: Callable[[int], list[LogprobsOnePosition]]
    ) -> list[LogprobsOnePosition]:
        """The first `count` dicts, in a new list; make(n) makes those from number n on."""
        with self._growing:
            if len(self._dicts) < count:
                self._dicts += make(len(self._dicts))
            return self._dicts[:count]


def _itself(made: Any) -> Any:
    return made


def since(logprobs: Any, first: int) -> Any:
    """The logprobs without the positions before `first`; unread ones stay unread."""
    if logprobs is None:
        return None
    return logprobs.since(first) if isinstance(logprobs, Unread) else logprobs[first:]


def joined(logprobs: Any, later: Any) -> Any:
    """The logprobs of two successive parts of an answer as one."""
    if logprobs is None or later is None:
        return later
    if isinstance(logprobs, Unread) and isinstance(later, Unread):
        return logprobs.followed_by(later)
    both = [one.read() if isinstance(one, Unread) else one for one in (logprobs, later)]
    made = FlatLogprobs() if isinstance(both[0], FlatLogprobs) else []
    for one in both:
        made.extend(one)
    return made


Read = TypeVar("Read")


class ReadLater(Generic[Read]):
    """A field of an output that may be set to Unread logprobs. They are read when the field is
    first asked for, and what that made replaces them. The value is kept under the field's own name,
    where programs that look into `vars(output)` find it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._kept_as = name

    def __get__(self, output: object, owner: type | None = None) -> Read:
        if output is None:
            raise AttributeError("a field of an output, not of its class")
        made: Read | Unread = output.__dict__[self._kept_as]
        if isinstance(made, Unread):
            made = output.__dict__[self._kept_as] = made.read()
        return made  # type: ignore[return-value]

    def __set__(self, output: object, value: Read | Unread) -> None:
        output.__dict__[self._kept_as] = value
