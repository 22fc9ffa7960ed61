"""Request: what was asked, as token ids. Nothing about a Request is validated again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, make_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from quire.outputs import AnswerReading
    from quire.sampling_params import BeamSearchParams, SamplingParams

Ints = npt.NDArray[np.int32]
# Hidden states of a text: of its first token, of its last, the sum over all, or each of them.
HiddenKind = Literal["first", "last", "sum", "all"]


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Texts of which one is the answer; `token_ids` spell them, and are what is scored.

    `longer[i]`: the choices that begin with choice i, not with a longer one of these.
    """

    texts: tuple[str, ...]
    token_ids: tuple[Ints, ...]
    longer: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ThoughtLimit:
    """At most `budget` tokens of thoughts, between the texts `opening` and `closing`; longer
    thoughts are ended with the tokens `forced`. `opened`: the prompt itself opens them."""

    budget: int
    opening: str
    closing: str
    forced: tuple[int, ...]
    opened: bool


@dataclass(frozen=True, slots=True, eq=False)
class NamedTokens:
    """Tokens to score as what might follow a prompt's tokens: ids[i] those after token number
    first + i, one line for each of its tokens but the last; -1 is none."""

    first: int
    ids: Ints  # [lines, k]


# What an encoder reads of one item, by name: pixels as bytes, sizes, samples.
Arrays = Mapping[str, npt.NDArray[Any]]


class Features(Protocol):
    """What an encoder reads of one item, prepared ahead of the engine."""

    def arrays(self) -> Arrays:
        """The arrays, at once if they are in memory; prepared again if they were dropped."""

    def encoded(self) -> None:
        """A plan took the arrays: they may be dropped."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class MediaItem:
    """An image, a clip or a video: its encoder makes `count` rows of it.

    `grid` (time, height, width) is the shape of its rows where positions have three coordinates,
    and `step` the distance of two of them in time."""

    serial: int
    kind: str
    count: int
    features: Features
    grid: tuple[int, int, int] | None = None
    step: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Where an item stands in a prompt: token places[i] takes row i of the encoder's output. Tokens
    between these places are ordinary ones. `two_way`: tokens of a run see each other."""

    item: MediaItem
    places: Ints
    two_way: bool = False
    start: int = field(init=False)
    end: int = field(init=False)  # one past its last token

    def __post_init__(self) -> None:
        """Computed once, because every plan reads them."""
        object.__setattr__(self, "start", int(self.places[0]))
        object.__setattr__(self, "end", int(self.places[-1]) + 1)

    @property
    def runs(self) -> Ints:
        """[n, 2]: where runs of neighbouring tokens of the item begin, and where they end:
        places [3 4 5 8 9] -> [[3 6] [8 10]]"""
        last = np.flatnonzero(np.diff(self.places) != 1)
        first = self.places[np.append(0, last + 1)]
        return np.stack([first, self.places[np.append(last, -1)] + np.int32(1)], 1)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """A LoRA adapter: its name and the digest of its files, with a number of its own.

    `asked` is the LoRARequest as the caller wrote it, `plan` what the store knows of its files.
    """

    number: int
    name: str
    digest: str
    asked: Any = None
    plan: Any = None

    def salted(self, salt: str) -> str:
        """The cache salt of its requests. No other request has it: no caller's has a NUL in it."""
        return f"\0{self.name}\0{self.digest}\0{salt}"


class Request(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """One prompt with its parameters, checked and complete. A struct, because making one of so many
    fields takes a tenth of the time of a dataclass.

    `number` counts the requests of an LLM; `noise_key` is 64 bits made from the seed (or from
    the LLM's seed and `number`). `max_tokens` is resolved against the model's length.
    `eos_ids` end the answer without a stop reason, `stop_ids` are the caller's; both lack the ids
    that `ignore_eos` removes, which are none of those that end a grammar.

    `thoughts` limits how many tokens its answers think aloud before they answer.

    `processors` are functions of the caller that edit the logits of its rows, in this order.
    `reading` says how its text is split into parts (inputs/answers.py), None if it is not.

    A request with `continuations` draws nothing: each of them is scored as what follows the
    prompt; none is empty. With `choices` its answer is one of them, by the scores of these
    continuations. With `search` its answers are the best that a beam search finds.

    A request with `hidden` draws nothing either: these hidden states of its prompt are its answer,
    without those of its first `hidden_from` tokens, which do not count.
    `whole`: the model computes the prompt in one pass or not at all.

    `media` are the items of its prompt, in order. In `prompt_ids` a token of an item is minus the
    item's serial: that names one content for as long as an engine lives, so that equal ids mean
    equal content wherever ids are compared (prefix cache, prefix tree, duplicates). In `plain_ids`
    it is the placeholder's own, and that is what is read as vocabulary.
    `coordinates` [3, tokens] are those of the prompt where positions have three of them, and
    `delta` is what is added to a later position to go on from them.

    `heard` is a sound that every token attends to, in prompt and answer; no token stands for it.
    The first of `prompt_ids` is then minus its serial, whatever token stands there.

    `named` tokens are scored beside the tokens of its prompt, from the first line of `named` on.

    Every step reports the new tokens of a `watched` request; for others only the end is reported.
    `background` requests yield to all others. Tenants have equal turns, whatever each asks for.

    A request with an `adapter` is computed by the model with that adapter. Its `cache_salt` is then
    made from the adapter's name and files, so that no other request reads its KV.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    number: int
    prompt_ids: Ints
    params: SamplingParams
    max_tokens: int
    noise_key: int
    eos_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()
    prompt: str | None = None
    priority: int = 0
    arrival: float = 0.0
    cache_salt: str = ""
    continuations: tuple[Ints, ...] = ()
    choices: Choices | None = None
    search: BeamSearchParams | None = None
    processors: tuple[Callable[..., Any], ...] = ()
    reading: AnswerReading | None = None
    thoughts: ThoughtLimit | None = None
    watched: bool = False
    background: bool = False
    tenant: str = ""
    hidden: HiddenKind | None = None
    hidden_from: int = 0
    whole: bool = False
    media: tuple[Span, ...] = ()
    with_placeholders: Ints | None = None  # the prompt's ids where some are negative
    coordinates: Ints | None = None
    delta: int = 0
    adapter: Adapter | None = None
    heard: MediaItem | None = None
    named: NamedTokens | None = None

    @property
    def first_scored(self) -> int | None:
        """The first token of its prompt after which tokens are scored; None if none are."""
        if self.named is not None:
            return self.named.first
        return None if self.params.prompt_logprobs is None else 0

    @property
    def items(self) -> tuple[MediaItem, ...]:
        """All its media: the items of its prompt, or the sound it hears."""
        heard = () if self.heard is None else (self.heard,)
        return (*(span.item for span in self.media), *heard) if self.media else heard

    @property
    def heard_serial(self) -> int:
        """The serial of the sound it hears; 0: none."""
        return 0 if self.heard is None else self.heard.serial

    @property
    def plain_ids(self) -> Ints:
        """The prompt in ids of the vocabulary."""
        return self.prompt_ids if self.with_placeholders is None else self.with_placeholders

    @property
    def adapter_number(self) -> int:
        """The number of its adapter; 0: none."""
        return 0 if self.adapter is None else self.adapter.number

    @property
    def lora_request(self) -> Any:
        """The LoRARequest of its adapter."""
        return None if self.adapter is None else self.adapter.asked

    def adapted_by(self, adapter: Adapter | None) -> Request:
        """The same request, computed with an adapter."""
        if adapter is None:
            return self
        salt = adapter.salted(self.cache_salt)
        return replace(self, adapter=adapter, cache_salt=salt)

    @property
    def num_prompt(self) -> int:
        return len(self.prompt_ids)


def _fields_of(kind: type[msgspec.Struct]) -> dict[str, Field[Any]]:
    """The fields of a struct as `dataclasses.fields` and `replace` read them."""
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    required = len(names) - len(defaults)
    listed = [(name, Any, field()) for name in names[:required]]
    listed += [(n, Any, field(default=d)) for n, d in zip(names[required:], defaults, strict=True)]
    return {each.name: each for each in fields(make_dataclass(kind.__name__, listed))}


Request.__dataclass_fields__ = _fields_of(Request)
