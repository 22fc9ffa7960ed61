"""Request: what was asked, as token ids. Past this door nothing is validated again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

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

    `longer[i]` are the choices that go on from choice i, those alone with none between them.
    """

    texts: tuple[str, ...]
    token_ids: tuple[Ints, ...]
    longer: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Request:
    """One prompt with its parameters, checked and complete.

    `number` counts the requests of an LLM; `noise_key` is 64 bits made from the seed (or from
    the LLM's seed and `number`). `max_tokens` is resolved against the model's length.
    `eos_ids` end the answer without a stop reason, `stop_ids` are the caller's; both are empty
    of what `ignore_eos` took away.

    `processors` are functions of the caller's that edit the logits of its rows, in this order.
    `reading` says how its text is taken apart (inputs/answers.py), None if it is not.

    A request with `continuations` draws nothing: each of them is scored as what follows the
    prompt; none is empty. With `choices` its answer is one of them, by the scores of these
    continuations. With `search` its answers are the best that a beam search finds.

    A request with `hidden` draws nothing either: these hidden states of its prompt are its answer.
    `whole`: the model computes the prompt in one pass or not at all.

    Of a `watched` request every step reports what it wrote, of any other only its end is. One in
    the `background` yields to those that are not.
    """

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
    watched: bool = False
    background: bool = False
    hidden: HiddenKind | None = None
    whole: bool = False

    @property
    def num_prompt(self) -> int:
        return len(self.prompt_ids)
