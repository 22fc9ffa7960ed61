"""Texts, token ids and pairs of texts -> requests for hidden states. No torch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.errors import (
    InvalidPrompt,
    InvalidRequest,
    NotSupported,
    PromptTooLong,
    QuireError,
)
from quire.inputs.chat import render_conversations
from quire.inputs.cut_encoder import CutEncoder, Text
from quire.inputs.known_tokens import check_encoded
from quire.inputs.parse import ParsedPrompt, naming_prompt, parse_prompt, result_or_error
from quire.inputs.prompt import Encoding, read_tokenization
from quire.inputs.quoting import ChatText
from quire.inputs.tokenization import named_options
from quire.inputs.tokenizer import Tokenizer
from quire.pooling.spec import PoolerSpec, Task
from quire.request import Ints, Request
from quire.sampling_params import SamplingParams

Made = Request | QuireError
_MOST_ENCODERS = 4  # copies of the tokenizer, one for each length of cut texts


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How the texts of a call are read: checked `tokenization_kwargs`, and the prompt before each
    text."""

    encoding: Encoding = Encoding()
    side: str = "right"
    prompt: str = ""
    chat_template: str | None = None  # template that writes a pair as one text

    @classmethod
    def of(
        cls,
        tokenization_kwargs: Mapping[str, Any] | None,
        truncate: int | None,
        prompt: str,
    ) -> TextOptions:
        given = dict(named_options(tokenization_kwargs))
        if truncate is not None:
            given.setdefault("truncate_prompt_tokens", truncate)
        side = given.get("truncation_side") or "right"
        return cls(read_tokenization(given), side, prompt)


class PoolingReader:
    def __init__(
        self,
        tokenizer: Tokenizer | None,
        spec: PoolerSpec,
        *,
        vocab_size: int,
        num_types: int,
        max_len: int,
        whole: bool,
    ) -> None:
        """Texts have at most `max_len` tokens. `whole`: the model needs each in a single pass."""
        self._tokenizer, self._spec = tokenizer, spec
        self._vocab_size, self._num_types = vocab_size, num_types
        self._max_len, self._whole = max_len, whole
        self._encoders: dict[tuple[int | None, str, bool], CutEncoder] = {}
        self._params: dict[bool, SamplingParams] = {}

    def check(self, options: TextOptions) -> None:
        """Refuse a length to which no text can be cut."""
        if self._spec.chat is None and self._tokenizer is not None:
            self._encoder(options)
        elif self.most(options) is not None and self._spec.chat is not None:
            raise NotSupported(
                "truncate_prompt_tokens: texts of this model are messages of a chat, whose end "
                "would be cut off; shorten the texts"
            )

    def prompt_named(self, name: str | None) -> str:
        """The text of a named prompt, which texts begin with; None: the model's default."""
        prompts = self._spec.prompts
        if name is None:
            name = self._spec.default_prompt
            return "" if name is None else prompts[name]
        if not isinstance(name, str) or (name and name not in prompts):
            known = ", ".join(repr(one) for one in prompts) or "none"
            raise InvalidRequest(
                f"prompt_name {name!r} is no prompt of this model; it has: {known}. '' is none.",
                parameter="prompt_name",
                value=name,
            )
        return prompts[name] if name else ""

    def read(
        self,
        prompts: Sequence[Any],
        task: Task,
        options: TextOptions,
        *,
        first_number: int,
        skip_cache: bool = False,
    ) -> list[Made]:
        """A request, or an error, for each prompt in order."""
        parsed = [result_or_error(_parsed, given, self._vocab_size) for given in prompts]
        texts: list[Text] = [
            self._lower(one.text or "")
            for one in parsed
            if not isinstance(one, QuireError) and one.token_ids is None
        ]
        encoded = iter(self._encode(texts, options))
        left_out = self._left_out(task, options) if texts else 0
        made: list[Made] = []
        for i, one in enumerate(parsed):
            if isinstance(one, QuireError):
                found: Made = one
            elif one.token_ids is None:
                ids = _with_text(next(encoded), left_out)
                found = self._request(ids, one, task, first_number + i, skip_cache, left_out)
            else:
                ids = _cut(one.token_ids, options, self)
                found = self._request(ids, one, task, first_number + i, skip_cache)
            made.append(naming_prompt(found, i))
        return made

    def read_pairs(
        self,
        pairs: Sequence[tuple[Any, Any]],
        task: Task,
        options: TextOptions,
        *,
        first_number: int,
    ) -> list[Made]:
        """As `read`, for pairs of texts that the model reads as one."""
        lower, wrong = self._lower, [_wrong_pair(pair) for pair in pairs]
        good: list[Text] = [
            (lower(one), lower(other))
            for (one, other), error in zip(pairs, wrong, strict=True)
            if error is None
        ]
        encoded, nothing = iter(self._encode(good, options)), ParsedPrompt(None, None)
        return [
            naming_prompt(
                self._request(error or next(encoded), nothing, task, first_number + i, False), i
            )
            for i, error in enumerate(wrong)
        ]

    def _left_out(self, task: Task, options: TextOptions) -> int:
        """How many tokens of the prompt before each text pooling leaves out: those that the prompt
        has by itself, without the special one at its end. Of chat messages none."""
        tokenizer, spec = self._tokenizer, self._spec
        if not options.prompt or spec.chat is not None or not spec.leaves_out_prompt(task):
            return 0
        if options.side == "left" and self.most(options) is not None:
            raise NotSupported(
                "truncation_side='left' would cut off the model's prompt, whose tokens are not "
                "pooled (include_prompt is false): keep the right side, or use prompt_name=''"
            )
        special = options.encoding.add_special_tokens
        [alone] = self._encoder(options).encode([self._lower(options.prompt)], special)
        if isinstance(alone, QuireError):
            raise alone
        ids = alone[0].tolist()
        ended = tokenizer is not None and not tokenizer.special_ids.isdisjoint(ids[-1:])
        return len(ids) - ended

    def _lower(self, text: str) -> str:
        return text.lower() if self._spec.lower_case else text

    def _encode(self, texts: Sequence[Text], options: TextOptions) -> list[Ints | QuireError]:
        if not texts:
            return []
        if self._tokenizer is None:
            raise NotSupported(
                "text needs a tokenizer, and skip_tokenizer_init=True left it out; pass token ids"
            )
        if self._spec.chat is not None:
            return self._encode_chats(texts, options, self._tokenizer, self._spec.chat)
        if options.chat_template is not None:
            given = {"chat_template": options.chat_template, "add_generation_prompt": False}
            chats = _rendered(texts, "", self._tokenizer, given)
            good: list[Text] = [one.text for one in chats if not isinstance(one, QuireError)]
        else:
            chats, first = [], self._lower(options.prompt)
            good = [
                f"{first}{t}" if isinstance(t, str) else (f"{first}{t[0]}", t[1]) for t in texts
            ]
        encoder = self._encoder(options, pairs=any(isinstance(text, tuple) for text in good))
        rows = iter(encoder.encode(good, options.encoding.add_special_tokens))
        encoded = [one if isinstance(one, QuireError) else next(rows) for one in chats or good]
        return [row if isinstance(row, QuireError) else self._typed(*row) for row in encoded]

    def _encode_chats(
        self,
        texts: Sequence[Text],
        options: TextOptions,
        tokenizer: Tokenizer,
        template_options: Mapping[str, Any],
    ) -> list[Ints | QuireError]:
        """Texts for a model that reads chat messages: the template has the special tokens."""
        self.check(options)
        given = {"chat_template": None, **template_options}
        if options.chat_template is not None:
            given["chat_template"] = options.chat_template
        chats = _rendered(texts, options.prompt, tokenizer, given)
        good = [one for one in chats if not isinstance(one, QuireError)]
        encoded = iter(tokenizer.encode_each(good, add_special_tokens=False))
        found = [one if isinstance(one, QuireError) else next(encoded) for one in chats]
        return [
            one if isinstance(one, QuireError) else self._typed(one, np.zeros_like(one))
            for one in found
        ]

    def _encoder(self, options: TextOptions, *, pairs: bool = False) -> CutEncoder:
        if self._tokenizer is None:
            raise NotSupported("there is no tokenizer: the LLM has skip_tokenizer_init=True")
        key = (self.most(options), options.side, pairs)
        if key not in self._encoders:
            while len(self._encoders) >= _MOST_ENCODERS:
                self._encoders.pop(next(iter(self._encoders)))
            self._encoders[key] = CutEncoder(self._tokenizer, *key)
        return self._encoders[key]

    def most(self, options: TextOptions) -> int | None:
        """The number of tokens to which a text is cut; None: not cut."""
        keep = options.encoding.truncate_prompt_tokens
        if keep == -1:
            return self._max_len
        if keep is not None and keep > self._max_len:
            raise InvalidRequest(
                f"truncate_prompt_tokens is {keep}, the model takes {self._max_len} tokens; -1 is "
                "as many as it takes",
                parameter="truncate_prompt_tokens",
                value=keep,
            )
        return keep

    def _typed(self, ids: Ints, types: Ints) -> Ints | QuireError:
        """Ids combined with their types, as encoders take them."""
        checked = check_encoded(ids, self._vocab_size)
        if isinstance(checked, QuireError) or self._num_types <= 1:
            return checked
        second = np.minimum(types, self._num_types - 1) * self._vocab_size
        typed: Ints = (ids + second).astype(np.int32)
        return typed

    def _request(
        self,
        ids: Ints | QuireError,
        parsed: ParsedPrompt,
        task: Task,
        number: int,
        skip_cache: bool,
        left_out: int = 0,
    ) -> Made:
        if isinstance(ids, QuireError):
            return ids
        if len(ids) > self._max_len:
            return PromptTooLong(
                f"the text has {len(ids)} tokens; the model takes {self._max_len}. Shorten it, or "
                "set truncate_prompt_tokens=-1 to keep its beginning",
                parameter="prompt",
                value=len(ids),
            )
        hidden = self._spec.states(task)
        return Request(
            number=number,
            prompt_ids=self._unpadded(ids) if task == "classify" else ids,
            params=self._sampling(skip_cache or hidden != "last"),
            max_tokens=0,
            noise_key=0,
            prompt=parsed.text,
            arrival=time.time(),
            cache_salt=parsed.cache_salt,
            hidden=hidden,
            hidden_from=left_out,
            whole=self._whole,
        )

    def _unpadded(self, ids: Ints) -> Ints:
        """The ids without padding at their end: [7 8 2 2] -> [7 8] where 2 pads; never none."""
        pad = None if self._spec.classifier is None else self._spec.classifier.pad
        others = np.flatnonzero(ids != pad)
        return ids[: others[-1] + 1] if len(others) else ids[:1]

    def _sampling(self, skip_cache: bool) -> SamplingParams:
        """States of cached tokens are not kept, so such requests do not use the prefix cache."""
        if skip_cache not in self._params:
            self._params[skip_cache] = SamplingParams(
                temperature=0, max_tokens=1, detokenize=False, skip_reading_prefix_cache=skip_cache
            )
        return self._params[skip_cache]


def _parsed(given: Any, vocab_size: int) -> ParsedPrompt:
    if isinstance(given, str) and not given:  # not empty: the tokenizer adds special tokens
        return ParsedPrompt("", None)
    return parse_prompt(given, vocab_size)


def _wrong_pair(pair: tuple[Any, Any]) -> InvalidPrompt | None:
    kind = next((type(one).__name__ for one in pair if not isinstance(one, str)), None)
    if kind is None:
        return None
    return InvalidPrompt(f"the pair has a {kind}; this model scores pairs of texts")


def _with_text(ids: Ints | QuireError, left_out: int) -> Ints | QuireError:
    """The ids of a text behind its prompt, or that pooling leaves all of them out."""
    if isinstance(ids, QuireError) or len(ids) > left_out or not left_out:
        return ids
    return InvalidPrompt(
        "no token is left to pool: those of the model's prompt do not count (include_prompt is "
        "false), and there are no others. Leave the text out, or use prompt_name=''"
    )


def _rendered(
    texts: Sequence[Text], prompt: str, tokenizer: Tokenizer, options: Mapping[str, Any]
) -> list[ChatText | QuireError]:
    """Each text as a user's message, or each pair as query and document, written by a template."""
    chats = []
    for text in texts:
        parts = {"user": text} if isinstance(text, str) else {"query": text[0], "document": text[1]}
        said = {"system": prompt, **parts} if prompt else parts
        chats.append([{"role": role, "content": content} for role, content in said.items()])
    return render_conversations(chats, tokenizer, **options)


def _cut(ids: Ints, options: TextOptions, reader: PoolingReader) -> Ints:
    """Cut token ids of the caller, without keeping special tokens at the ends."""
    most = reader.most(options)
    if most is None or len(ids) <= most:
        return ids
    return ids[:most] if options.side == "right" else ids[-most:]
