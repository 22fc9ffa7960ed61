"""What a caller passed -> windows of requests.

A list is read and checked whole, so that a bad prompt is told before any work. Anything else
that can be iterated is read window by window, so that memory stays bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any

from quire.errors import InvalidParams, NotSupported, QuireError
from quire.inputs.answers import AnswerOptions
from quire.inputs.chat import render_conversations
from quire.inputs.prompt import RequestMaker, split_prompts
from quire.inputs.thoughts import begins_in_format
from quire.inputs.tokenizer import Tokenizer
from quire.outputs import AnswerReading
from quire.request import Request
from quire.run import Refused, Window
from quire.sampling_params import RequestOutputKind, SamplingParams
from quire.session.adapters import AskedAdapters, Make, adapted
from quire.session.priorities import priorities_of, wrong_priorities

# A plan sees at most this much at once; beyond it the gain is small and the memory is not.
MOST_PROMPTS, MOST_TOKENS = 65_536, 64_000_000
Params = SamplingParams | Sequence[SamplingParams]
# Fields that hold one number, word or None; those that hold plain lists of these, or a dict; and
# those that may hold anything.
_LISTS = ("stop", "stop_token_ids", "logprob_token_ids", "allowed_token_ids", "bad_words")
_OBJECTS = (
    "structured_outputs",
    "extra_args",
    "repetition_detection",
    "guided_decoding",
    "logits_processors",
)
_lists, _objects = attrgetter(*_LISTS), attrgetter(*_OBJECTS)
_SCALARS = (
    name
    for name in SamplingParams.__struct_fields__
    if name not in {*_LISTS, *_OBJECTS, "logit_bias"}
)
_scalars = attrgetter(*_SCALARS)


class Intake:
    """Numbers and checks the requests of one LLM."""

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
        """Windows of requests, and how many prompts there are, None if nobody knows.

        A list with a bad prompt raises here if `strict`; otherwise bad prompts are refused
        one by one. `watched`: what they write is wanted step by step. `media_options`: those of
        the processor, for all prompts.
        """
        given = split_prompts(prompts)

        def make(some: list[Any], *rest: Any, **more: Any) -> list[Request | QuireError]:
            more |= {"tokenization_kwargs": tokenization_kwargs, "media_options": media_options}
            made = self._maker.make(some, *rest, **more)
            made = _with_reading(made, self._answers.for_text)
            return [_watch(one) for one in made] if watched else made

        return self._read(given, params, priority, strict, make, adapters)

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
        if (tokenizer := self._tokenizer) is None:
            raise NotSupported("chat() needs a tokenizer, and skip_tokenizer_init=True left it out")
        kwargs = {"add_special_tokens": False, **(tokenization_kwargs or {})}
        reading = partial(self._answers.for_chat, with_tools=bool(rendering.get("tools")))

        def make(some: list[Any], *rest: Any, **more: Any) -> list[Request | QuireError]:
            rendered = render_conversations(
                some, tokenizer, first_index=more["first_index"], **rendering
            )
            more |= {"tokenization_kwargs": kwargs, "media_options": media_options}
            made = self._maker.make(rendered, *rest, **more)
            return _with_reading(made, reading)

        given = split_prompts(conversations)
        return self._read(given, params, priority, strict, make, adapters)

    def read_watched(
        self,
        prompt: Any,
        params: SamplingParams,
        *,
        priority: int = 0,
        tokenization_kwargs: dict[str, Any] | None = None,
        background: bool = False,
        chat: bool = False,
        with_tools: bool = False,
        adapters: AskedAdapters | None = None,
    ) -> Request | Refused:
        """One prompt, whose answer is wanted step by step. `chat`: it was written out from a
        conversation, and its answer is taken apart as such."""
        make = partial(self._maker.make, tokenization_kwargs=tokenization_kwargs)
        [made] = self._make([prompt], _ParamCopies(params), 0, [priority], adapted(make, adapters))
        if isinstance(made, Refused):
            return made
        reading: Callable[[str | None], AnswerReading | None] = self._answers.for_text
        if chat:
            reading = partial(self._answers.for_chat, with_tools=with_tools)
        [read] = _with_reading([replace(made, background=background)], reading)
        watched = _watch(read)
        return watched if isinstance(watched, Request) else made

    def check(self) -> None:
        """NotSupported where the model writes no text."""
        if self._refusal is not None:
            raise NotSupported(self._refusal)

    def take_numbers(self, count: int) -> int:
        """Numbers for so many requests that are made elsewhere; the first of them."""
        first, self._num_made = self._num_made, self._num_made + count
        return first

    def window(
        self,
        prompts: Sequence[Any],
        params: Sequence[SamplingParams],
        adapters: AskedAdapters | None = None,
    ) -> Window:
        """One window, each prompt with its own parameters; bad prompts are refused."""
        make = adapted(self._maker.make, adapters)
        return self._make(list(prompts), _ParamCopies(params), 0, None, make)

    def _read(
        self,
        given: Any,
        params: Params | None,
        priority: Sequence[int] | None,
        strict: bool,
        make: Make,
        adapters: AskedAdapters | None,
    ) -> tuple[Iterable[Window], int | None]:
        make = adapted(make, adapters)
        copies = _ParamCopies(self._default_params() if params is None else params)
        if not isinstance(given, Sequence):
            return self._lazily(iter(given), copies, priority, make), None
        copies.check_count(len(given))
        if adapters is not None:
            adapters.check_count(len(given))
        if priority is not None and len(priority) != len(given):
            raise wrong_priorities(f"has {len(priority)} entries for {len(given)} prompts")
        made = self._make(list(given), copies, 0, priority, make)
        if strict:
            for item in made:
                if isinstance(item, Refused):
                    raise item.error
        return cut_windows(made), len(given)

    def _make(
        self,
        prompts: list[Any],
        copies: _ParamCopies,
        first: int,
        priority: Sequence[int] | None,
        make: Make,
    ) -> Window:
        self.check()
        priorities = None if priority is None else priorities_of(priority, first, len(prompts))
        number, self._num_made = self._num_made, self._num_made + len(prompts)
        made = make(
            prompts,
            [copies.at(first + i) for i in range(len(prompts))],
            first_number=number,
            first_index=first,
            priorities=priorities,
            arrival=time.time(),
        )
        return [
            item if isinstance(item, Request) else Refused(number + i, item)
            for i, item in enumerate(made)
        ]

    def _lazily(
        self,
        prompts: Iterator[Any],
        copies: _ParamCopies,
        priority: Sequence[int] | None,
        make: Make,
    ) -> Iterator[Window]:
        first = 0
        while some := list(islice(prompts, self._lazy_window)):
            yield self._make(some, copies, first, priority, make)
            first += len(some)


class _ParamCopies:
    """Private, checked copies of the caller's parameters, none made twice."""

    def __init__(self, params: Params) -> None:
        if not isinstance(params, (SamplingParams, Sequence)):
            raise InvalidParams(
                f"sampling_params is a SamplingParams or a list of them, not "
                f"{type(params).__name__}",
                parameter="sampling_params",
                value=params,
            )
        self._params = params
        self._copies: dict[int, tuple[SamplingParams, SamplingParams]] = {}
        self._alike: dict[tuple[Any, ...], SamplingParams] = {}

    def check_count(self, num_prompts: int) -> None:
        if isinstance(self._params, SamplingParams) or len(self._params) == num_prompts:
            return
        raise InvalidParams(
            f"sampling_params has {len(self._params)} entries for {num_prompts} prompts; give "
            "one for all, or one for each",
            parameter="sampling_params",
            value=len(self._params),
        )

    def at(self, index: int) -> SamplingParams:
        params = self._params
        if not isinstance(params, SamplingParams):
            if index >= len(params):
                raise InvalidParams(
                    f"sampling_params has {len(params)} entries, and there are more prompts",
                    parameter="sampling_params",
                    value=len(params),
                )
            params = params[index]
        if not isinstance(params, SamplingParams):
            raise InvalidParams(
                f"sampling_params[{index}] is a {type(params).__name__}, not a SamplingParams",
                parameter="sampling_params",
                value=params,
            )
        known = self._copies.get(id(params))
        if known is None:
            # With the original, which a sequence may make anew each time: its id stays taken.
            known = self._copies[id(params)] = params, self._copy(params)
        return known[1]

    def _copy(self, params: SamplingParams) -> SamplingParams:
        """One for all that say the same: a list of parameters mostly does."""
        if any(v is not None and (type(v) is not list or v) for v in _objects(params)):
            return params.checked_copy()
        values: list[Any] = [*_scalars(params)]
        for part in (*_lists(params), params.logit_bias):
            if type(part) is list:
                values += [len(part), *part]
            elif type(part) is dict:
                values += [len(part), *part, *part.values()]
            elif part is None or type(part) is str:
                values.append(part)
            else:
                return params.checked_copy()
        # 1 and True are equal, and only one of them is a number of samples.
        key = tuple(values), tuple(map(type, values))
        try:
            found = self._alike.get(key)
        except TypeError:  # something is there that cannot be a key: the check says what
            return params.checked_copy()
        if found is None:
            found = self._alike[key] = params.checked_copy()
        return found


def _watch(made: Request | QuireError) -> Request | QuireError:
    """The request as a watched one, unless its parameters ask for the end alone."""
    if not isinstance(made, Request) or made.params.output_kind is RequestOutputKind.FINAL_ONLY:
        return made
    return replace(made, watched=True)


def _with_reading(
    made: list[Request | QuireError], reading: Callable[[str | None], AnswerReading | None]
) -> list[Request | QuireError]:
    """The requests, each with how its answer is taken apart, which its prompt may decide."""
    read = list[Request | QuireError]()
    for item in made:
        if isinstance(item, Request) and (how := reading(item.prompt)) is not None:
            if how.began_in_prompt and begins_in_format(item.params.structured_outputs):
                how = replace(how, began_in_prompt=False)
            item = replace(item, reading=how)
        read.append(item)
    return read


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
