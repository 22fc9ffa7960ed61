"""Turns what a caller passed into windows of requests.

A list is read and checked as a whole, so that a bad prompt is refused before any work. Any other
iterable is read window by window, so that memory stays bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from quire.errors import NotSupported, QuireError
from quire.inputs.answers import AnswerOptions
from quire.inputs.chat import render_conversations
from quire.inputs.marked_calls import offered_functions
from quire.inputs.media.held import windows
from quire.inputs.prompt import RequestMaker, split_prompts
from quire.inputs.thoughts import begins_in_format
from quire.inputs.tokenization import named_options
from quire.inputs.tokenizer import Tokenizer
from quire.outputs import AnswerReading
from quire.request import Request
from quire.run import Refused, Window
from quire.sampling_params import RequestOutputKind, SamplingParams
from quire.session.adapters import AskedAdapters
from quire.session.param_copies import ParamCopies, Params
from quire.session.priorities import check_listed, priorities_of, wrong_priorities

# The largest window. A plan gains little from more requests, and they take memory.
MOST_PROMPTS, MOST_TOKENS = 65_536, 64_000_000
# How the answer to a prompt is split into parts, by the prompt's text.
Reading = Callable[[str | None], AnswerReading | None]


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of a call: one for all its prompts, or one for each."""

    params: ParamCopies
    reading: Reading | None = None  # None: answers are left as they are
    priority: Sequence[int] | None = None
    adapters: AskedAdapters | None = None
    tokenization_kwargs: dict[str, Any] | None = None
    media_options: dict[str, Any] | None = None
    rendering: dict[str, Any] | None = None  # of conversations, by the chat template
    watched: bool = False
    background: bool = False
    tenant: str = ""

    def __post_init__(self) -> None:
        if self.priority is not None:
            check_listed(self.priority)

    def check_count(self, num_prompts: int) -> None:
        """Check that lists with one entry per prompt have this many entries."""
        self.params.check_count(num_prompts)
        if self.adapters is not None:
            self.adapters.check_count(num_prompts)
        if self.priority is not None and len(self.priority) != num_prompts:
            raise wrong_priorities(f"has {len(self.priority)} entries for {num_prompts} prompts")

    def wanted(self, prompt: str | None, params: SamplingParams) -> dict[str, Any]:
        """Fields of the Request of a prompt that say how its answer is returned."""
        how = None if self.reading is None else self.reading(prompt)
        if how is not None and how.began_in_prompt:
            how = replace(how, began_in_prompt=not begins_in_format(params.structured_outputs))
        # FINAL_ONLY asks for the last output only.
        watched = self.watched and params.output_kind is not RequestOutputKind.FINAL_ONLY
        whose = {"background": self.background, "tenant": self.tenant}
        return {"reading": how, "watched": watched, **whose}


class Intake:
    def __init__(
        self,
        maker: RequestMaker,
        default_params: Callable[[], SamplingParams],
        *,
        tokenizer: Tokenizer | None,
        lazy_window: int,
        answers: AnswerOptions,
        refusal: str | None = None,
    ) -> None:
        """`refusal`: why the model writes no text, or None."""
        self._answers, self._refusal = answers, refusal
        self._maker, self._default_params = maker, default_params
        self._tokenizer, self._lazy_window = tokenizer, lazy_window
        self._num_made = 0

    def use(self, maker: RequestMaker, tokenizer: Tokenizer) -> None:
        """Use another tokenizer from now on; the numbering of requests goes on."""
        self._maker, self._tokenizer = maker, tokenizer

    def read(
        self,
        prompts: Any,
        params: Params | None,
        *,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        strict: bool = False,
        watched: bool = False,
        adapters: AskedAdapters | None = None,
        media_options: dict[str, Any] | None = None,
    ) -> tuple[Iterable[Window], int | None]:
        """Windows of requests, and the number of prompts, None if it is not known.

        A list with a bad prompt raises here if `strict`; otherwise bad prompts are refused
        one by one. `watched`: outputs are wanted while answers grow. `media_options`: options of
        the media processor, for all prompts.
        """
        given = split_prompts(prompts)
        call = _Call(
            self._copies(params),
            self._answers.for_text,
            priority,
            adapters,
            tokenization_kwargs,
            media_options,
            watched=watched,
        )
        return self._read(given, call, strict)

    def read_chats(
        self,
        conversations: Any,
        params: Params | None,
        *,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        strict: bool = False,
        rendering: dict[str, Any],
        media_options: dict[str, Any] | None = None,
        adapters: AskedAdapters | None = None,
    ) -> tuple[Iterable[Window], int | None]:
        """`read` for conversations, which are first written out with the chat template."""
        if self._tokenizer is None:
            raise NotSupported("chat() needs a tokenizer, and skip_tokenizer_init=True left it out")
        given = split_prompts(conversations)
        call = _Call(
            self._copies(params),
            partial(self._answers.for_chat, offered=offered_functions(rendering.get("tools"))),
            priority,
            adapters,
            {"add_special_tokens": False, **named_options(tokenization_kwargs)},
            media_options,
            rendering,
        )
        return self._read(given, call, strict)

    def read_watched(
        self,
        prompts: Sequence[Any],
        params: Sequence[SamplingParams],
        *,
        own_params: bool = False,
        priority: Sequence[int],
        tokenization_kwargs: dict[str, Any] | None = None,
        background: bool = False,
        tenant: str = "",
        chat: bool = False,
        tools: Sequence[Any] | None = None,
        adapters: AskedAdapters | None = None,
    ) -> Window:
        """One window of prompts whose answers are wanted as they grow. `chat`: the prompts were
        conversations, and their answers are split into parts as such. `own_params`: the
        parameters are checked, and are not used elsewhere."""
        reading: Reading = self._answers.for_text
        if chat:
            reading = partial(self._answers.for_chat, offered=offered_functions(tools))
        call = _Call(
            ParamCopies.own(params) if own_params else ParamCopies(params),
            reading,
            priority,
            adapters,
            tokenization_kwargs,
            watched=True,
            background=background,
            tenant=tenant,
        )
        return self._make(list(prompts), call, 0)

    def look(self, prompt: Any) -> QuireError | None:
        """Check the headers of a prompt's media and return the error found, before the prompt is
        read on a thread that others wait for. May be called on any thread."""
        return self._maker.look(prompt)

    def window(
        self,
        prompts: Sequence[Any],
        params: Sequence[SamplingParams],
        adapters: AskedAdapters | None = None,
    ) -> Window:
        """One window, each prompt with its own parameters; bad prompts are refused."""
        return self._make(list(prompts), _Call(ParamCopies(params), adapters=adapters), 0)

    def check(self) -> None:
        """Raise NotSupported if the model writes no text."""
        if self._refusal is not None:
            raise NotSupported(self._refusal)

    @property
    def num_made(self) -> int:
        """The number of requests made so far, which is the number of the next request."""
        return self._num_made

    def take_numbers(self, count: int) -> int:
        """Reserve `count` request numbers; returns the first of them."""
        first, self._num_made = self._num_made, self._num_made + count
        return first

    def _copies(self, params: Params | None) -> ParamCopies:
        return ParamCopies(self._default_params() if params is None else params)

    def _read(self, given: Any, call: _Call, strict: bool) -> tuple[Iterable[Window], int | None]:
        if not isinstance(given, Sequence):
            return self._lazily(iter(given), call), None
        call.check_count(len(given))
        made = self._make(list(given), call, 0)
        if strict:
            for item in made:
                if isinstance(item, Refused):
                    raise item.error
        return cut_windows(made), len(given)

    def _lazily(self, prompts: Iterator[Any], call: _Call) -> Iterator[Window]:
        first = 0
        for some in windows(prompts, self._lazy_window):
            yield self._make(some, call, first)
            first += len(some)

    def _make(self, prompts: list[Any], call: _Call, first: int) -> Window:
        """The requests of prompts whose first has index `first` among all prompts of the call."""
        self.check()
        count, priority = len(prompts), call.priority
        priorities = None if priority is None else priorities_of(priority, first, count)
        number = self.take_numbers(count)
        params = [call.params.at(first + i) for i in range(count)]
        if call.rendering is not None and self._tokenizer is not None:
            prompts = render_conversations(
                prompts, self._tokenizer, first_index=first, **call.rendering
            )
        made = self._maker.make(
            prompts,
            params,
            first_number=number,
            first_index=first,
            priorities=priorities,
            arrival=time.time(),
            tokenization_kwargs=call.tokenization_kwargs,
            media_options=call.media_options,
            wanted=call.wanted,
        )
        if call.adapters is not None:
            made = call.adapters.onto(made, first)
        return [
            item if isinstance(item, Request) else Refused(number + i, item)
            for i, item in enumerate(made)
        ]


def cut_windows(items: Window) -> Iterator[Window]:
    """Cut items into windows of at most MOST_PROMPTS prompts, or about MOST_TOKENS tokens."""
    window: Window = []
    num_tokens = 0
    for item in items:
        window.append(item)
        num_tokens += 0 if isinstance(item, Refused) else item.num_prompt
        if len(window) >= MOST_PROMPTS or num_tokens >= MOST_TOKENS:
            yield window
            window, num_tokens = [], 0
    if window:
        yield window
