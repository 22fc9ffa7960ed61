"""What a caller passed -> windows of requests.

A list is read and checked whole, so that a bad prompt is refused before any work. Anything else
that can be iterated is read window by window, so that memory stays bounded.
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
from quire.inputs.media.held import windows
from quire.inputs.prompt import RequestMaker, split_prompts
from quire.inputs.thoughts import begins_in_format
from quire.inputs.tokenizer import Tokenizer
from quire.outputs import AnswerReading
from quire.request import Request
from quire.run import Refused, Window
from quire.sampling_params import RequestOutputKind, SamplingParams
from quire.session.adapters import AskedAdapters
from quire.session.param_copies import ParamCopies, Params
from quire.session.priorities import priorities_of, wrong_priorities

# A plan sees at most this much at once; beyond it the gain is small and the memory is not.
MOST_PROMPTS, MOST_TOKENS = 65_536, 64_000_000
# How the answer to a prompt is taken apart, by the prompt's text.
Reading = Callable[[str | None], AnswerReading | None]


@dataclass(frozen=True, slots=True)
class _Call:
    """What a call says of all its prompts, or of one after the other."""

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

    def check_count(self, num_prompts: int) -> None:
        """Whether lists with an entry for each prompt have so many."""
        self.params.check_count(num_prompts)
        if self.adapters is not None:
            self.adapters.check_count(num_prompts)
        if self.priority is not None and len(self.priority) != num_prompts:
            raise wrong_priorities(f"has {len(self.priority)} entries for {num_prompts} prompts")

    def wanted(self, prompt: str | None, params: SamplingParams) -> dict[str, Any]:
        """What is wanted of the answer to a prompt, as fields of its Request."""
        how = None if self.reading is None else self.reading(prompt)
        if how is not None and how.began_in_prompt:
            how = replace(how, began_in_prompt=not begins_in_format(params.structured_outputs))
        # Unless the parameters ask for the end alone.
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
        """`refusal` says why the model writes no text, where it writes none."""
        self._answers, self._refusal = answers, refusal
        self._maker, self._default_params = maker, default_params
        self._tokenizer, self._lazy_window = tokenizer, lazy_window
        self._num_made = 0

    def use(self, maker: RequestMaker, tokenizer: Tokenizer) -> None:
        """Another tokenizer from here on; the numbering of requests goes on."""
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
        """Windows of requests, and how many prompts there are, None if that is not known.

        A list with a bad prompt raises here if `strict`; otherwise bad prompts are refused
        one by one. `watched`: what they write is wanted step by step. `media_options`: those of
        the processor, for all prompts.
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
        """The same for conversations, written out with the chat template first."""
        if self._tokenizer is None:
            raise NotSupported("chat() needs a tokenizer, and skip_tokenizer_init=True left it out")
        given = split_prompts(conversations)
        call = _Call(
            self._copies(params),
            partial(self._answers.for_chat, with_tools=bool(rendering.get("tools"))),
            priority,
            adapters,
            {"add_special_tokens": False, **(tokenization_kwargs or {})},
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
        with_tools: bool = False,
        adapters: AskedAdapters | None = None,
    ) -> Window:
        """One window of prompts, whose answers are wanted step by step. `chat`: they were written
        out from conversations, and their answers are taken apart as such. `own_params`: the
        parameters are checked, and are not used elsewhere."""
        reading: Reading = self._answers.for_text
        if chat:
            reading = partial(self._answers.for_chat, with_tools=with_tools)
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
        """See what the headers of a prompt's media say, before it is read where others wait for
        that; what is wrong with them. Any thread may."""
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
        """NotSupported where the model writes no text."""
        if self._refusal is not None:
            raise NotSupported(self._refusal)

    @property
    def num_made(self) -> int:
        """Requests so far, which is the number of the next."""
        return self._num_made

    def take_numbers(self, count: int) -> int:
        """Numbers for so many requests; the first of them."""
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
        """The requests of prompts that stand at place `first` and behind it."""
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
    """Cut at so many prompts, or so many prompt tokens."""
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
