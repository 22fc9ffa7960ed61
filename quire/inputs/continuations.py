"""Makes requests that score from contexts and their continuations.

Text is split as lm-eval splits it: spaces at the end of a context belong to the continuation,
both are encoded together, and the continuation is what comes after the context's own tokens. A
context without tokens is the token that begins a text (or else the one that ends it). Token ids
are taken as they are. Equal contexts become one request, however the caller wrote them, and equal
continuations of a context are scored once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from quire.errors import InvalidPrompt, InvalidRequest, PromptTooLong
from quire.inputs.parse import ParsedPrompt, is_single, parse_prompt, split_prompts
from quire.inputs.tokenizer import Tokenizer
from quire.request import Adapter, Ints, Request
from quire.sampling_params import SamplingParams

# Contexts encoded at once: whole texts are kept no longer than it takes to split them.
TOGETHER = 256
# (request, continuation of that request)
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ContinuationBatch:
    """Requests, and for each context of the caller the places of its continuations in them."""

    requests: list[Request]
    places: list[list[Place]]


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """One context with its distinct continuations."""

    context: Ints
    salt: str
    adapter: Adapter | None
    continuations: dict[bytes, Ints] = field(default_factory=dict)


class AdapterOf(Protocol):
    """The LoRA adapters of contexts."""

    def check_count(self, num_prompts: int) -> None:
        """InvalidRequest unless there is one for each of so many."""

    def at(self, index: int) -> Adapter | None: ...


class ContinuationReader:
    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        max_model_len: int,
        pool_tokens: int,
        take_numbers: Callable[[int], int],
    ) -> None:
        """`take_numbers` returns the first of so many unused request numbers, by which an engine
        that serves several calls distinguishes requests."""
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._take_numbers = take_numbers
        self._max_model_len, self._pool_tokens = max_model_len, pool_tokens

    def read(
        self, contexts: Any, continuations: Any, adapters: AdapterOf | None = None
    ) -> ContinuationBatch:
        """Everything is checked here, before any work. `adapters` has one for each context."""
        if is_single(contexts):
            contexts, continuations = [contexts], [continuations]
        given = list(split_prompts(contexts))
        if adapters is not None:
            adapters.check_count(len(given))
        adapted = [None if adapters is None else adapters.at(i) for i in range(len(given))]
        listed = _lists(continuations, len(given))
        parsed = [self._parse(one, f"context {i}", "contexts") for i, one in enumerate(given)]
        options = [
            [
                self._parse(one, f"continuation {j} of context {i}", "continuations")
                for j, one in enumerate(some)
            ]
            for i, some in enumerate(listed)
        ]
        groups: dict[tuple[str, bytes], _Group] = {}
        found: list[list[tuple[_Group, bytes]]] = []
        for first in range(0, len(parsed), TOGETHER):
            some = slice(first, first + TOGETHER)
            encoded = self._encode(_texts(parsed[some], options[some]))
            for context, theirs in zip(parsed[some], options[some], strict=True):
                by = adapted[len(found)]
                found.append(self._group(context, theirs, encoded, groups, len(found), by))
        return _batch(list(groups.values()), found, self._take_numbers(len(groups)))

    def _group(
        self,
        context: ParsedPrompt,
        continuations: Sequence[ParsedPrompt],
        encoded: dict[str, Ints],
        groups: dict[tuple[str, bytes], _Group],
        index: int,
        adapter: Adapter | None,
    ) -> list[tuple[_Group, bytes]]:
        """Put the continuations of context number `index` into their groups; where they are."""
        places = []
        salt = context.cache_salt if adapter is None else adapter.salted(context.cache_salt)
        for j, continuation in enumerate(continuations):
            ids, own = self._split(context, continuation, encoded)
            self._check(ids, own, f"continuation {j} of context {index}")
            key = (salt, ids.tobytes())
            group = groups.setdefault(key, _Group(ids, salt, adapter))
            group.continuations[own.tobytes()] = own
            places.append((group, own.tobytes()))
        return places

    def _parse(self, given: Any, where: str, parameter: str) -> ParsedPrompt:
        """A context or a continuation; a context may be empty."""
        if parameter == "contexts" and not isinstance(given, dict) and _is_empty(given):
            return ParsedPrompt("", None)
        try:
            parsed = parse_prompt(given, self._vocab_size)
        except InvalidRequest as error:
            raise InvalidPrompt(
                f"{where}: {error.message}", parameter=parameter, value=error.value
            ) from None
        if parsed.token_ids is None and self._tokenizer is None:
            raise InvalidPrompt(
                f"{where} is text, and the tokenizer was left out (skip_tokenizer_init=True); "
                "pass token ids",
                parameter=parameter,
            )
        return parsed

    def _encode(self, texts: list[str]) -> dict[str, Ints]:
        """Token ids of distinct texts, without those that a tokenizer puts around them."""
        if self._tokenizer is None or not texts:
            return {}
        return dict(zip(texts, self._tokenizer.encode_batch(texts, False), strict=True))

    def _split(
        self, context: ParsedPrompt, continuation: ParsedPrompt, encoded: dict[str, Ints]
    ) -> tuple[Ints, Ints]:
        """Token ids of a context, and those that its continuation adds."""
        if context.token_ids is not None:
            own = continuation.token_ids
            return context.token_ids, encoded[str(continuation.text)] if own is None else own
        text = context.text or ""
        if continuation.token_ids is not None:
            ids = self._begun(encoded[text]) if text else self._beginning
            return ids if len(ids) else self._prefix, continuation.token_ids
        bare = text.rstrip()
        whole = self._begun(encoded[f"{text}{continuation.text}"])
        ids = self._begun(encoded[bare]) if bare else self._beginning
        if len(ids):
            return ids, whole[len(ids) :]
        starts_with_it = len(whole) > 0 and whole[0] == self._prefix[0]
        return self._prefix, whole[1:] if starts_with_it else whole

    def _begun(self, ids: Ints) -> Ints:
        """The ids with the tokens that the tokenizer puts before a text, unless they have them."""
        first = self._beginning
        if len(first) and len(ids) and ids[0] == first[-1]:
            first = first[:-1]
        return np.concatenate([first, ids])

    @cached_property
    def _beginning(self) -> Ints:
        """The tokens that the tokenizer puts before a text."""
        if self._tokenizer is None:
            return np.empty(0, np.int32)
        plain, around = (self._tokenizer.encode("a", special) for special in (False, True))
        for at in range(len(around) - len(plain) + 1):
            if (around[at : at + len(plain)] == plain).all():
                return around[:at]
        return around[:0]

    @property
    def _prefix(self) -> Ints:
        """The token used for a context without tokens."""
        tokenizer = self._tokenizer
        known = [] if tokenizer is None else [tokenizer.bos_id, *tokenizer.eos_ids]
        for token in known:
            if token is not None:
                return np.array([token], np.int32)
        raise InvalidPrompt(
            "a context is empty, and the tokenizer knows no token that begins or ends a text; give "
            "each context at least one token",
            parameter="contexts",
        )

    def _check(self, context: Ints, continuation: Ints, where: str) -> None:
        if not len(continuation):
            raise InvalidPrompt(
                f"{where} adds no token of its own: it is empty, or the tokenizer merges it with "
                "the context. Pass both as token ids, or move the border between them",
                parameter="continuations",
            )
        largest = max(int(context.max()), int(continuation.max()))
        if largest >= self._vocab_size:
            raise InvalidPrompt(
                f"{where}: the tokenizer gives token {largest}, and the model has only "
                f"{self._vocab_size}; the tokenizer is another model's",
                parameter="continuations",
                value=largest,
            )
        count = len(context) + len(continuation) - 1  # the last token is not fed
        most = min(self._max_model_len, self._pool_tokens)
        if count > most:
            what = "the model takes" if most == self._max_model_len else "the KV cache has room for"
            raise PromptTooLong(
                f"{where}: the context has {len(context)} tokens and the continuation "
                f"{len(continuation)}, of which {count} are computed; {what} {most}. Shorten the "
                "context from the left, or raise max_model_len or kv_cache_memory_bytes",
                parameter="contexts",
                value=count,
            )


def _is_empty(given: Any) -> bool:
    return isinstance(given, str | list | tuple | np.ndarray) and len(given) == 0


def _lists(continuations: Any, num_contexts: int) -> list[list[Any]]:
    if not isinstance(continuations, Iterable) or isinstance(continuations, str | bytes | dict):
        raise InvalidPrompt(
            "continuations is a list with a list of continuations for each context, not "
            f"{type(continuations).__name__}",
            parameter="continuations",
        )
    listed = []
    for i, some in enumerate(continuations):
        if is_single(some) or not isinstance(some, Iterable):
            raise InvalidPrompt(
                f"continuations[{i}] is a {type(some).__name__}; give a list of continuations for "
                "each context, also where there is one",
                parameter="continuations",
            )
        listed.append(list(some))
    if len(listed) != num_contexts:
        raise InvalidPrompt(
            f"there are {num_contexts} contexts and {len(listed)} lists of continuations; give one "
            "list for each context",
            parameter="continuations",
            value=len(listed),
        )
    return listed


def _texts(
    contexts: Sequence[ParsedPrompt], options: Sequence[Sequence[ParsedPrompt]]
) -> list[str]:
    """Every distinct text that has to be encoded."""
    texts: dict[str, None] = {}
    for context, some in zip(contexts, options, strict=True):
        text = context.text or "" if context.token_ids is None else None
        for continuation in some:
            if text is None:
                if continuation.token_ids is None:
                    texts[str(continuation.text)] = None
            elif continuation.token_ids is None:
                texts[text.rstrip()] = texts[f"{text}{continuation.text}"] = None
            else:
                texts[text] = None
    return [text for text in texts if text]


def _batch(
    groups: list[_Group], found: list[list[tuple[_Group, bytes]]], first_number: int
) -> ContinuationBatch:
    params, now = SamplingParams(temperature=0, max_tokens=1, detokenize=False), time.time()
    requests: list[Request] = []
    place_of: dict[int, dict[bytes, Place]] = {}
    for index, group in enumerate(groups):
        order = list(group.continuations)
        place_of[id(group)] = {own: (index, place) for place, own in enumerate(order)}
        requests.append(
            Request(
                number=first_number + index,
                prompt_ids=group.context,
                params=params,
                max_tokens=0,
                noise_key=0,
                arrival=now,
                cache_salt=group.salt,
                continuations=tuple(group.continuations[own] for own in order),
                adapter=group.adapter,
            )
        )
    places = [[place_of[id(group)][own] for group, own in row] for row in found]
    return ContinuationBatch(requests, places)
