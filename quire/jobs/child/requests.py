"""Rows as the supervisor sends them, made into prompts and parameters for the engine.

A row that cannot be made into a request gives the error that says why; the others pass.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any, TypeVar

from quire.base.boundary import fault_of_row, reason
from quire.errors import (
    DoesNotFit,
    GrammarFailed,
    InvalidGrammar,
    InvalidLogits,
    InvalidParams,
    InvalidPrompt,
    InvalidRequest,
    MediumFailed,
    NoTokenLeft,
    NotSupported,
    PromptTooLong,
    QuireError,
    RowError,
)
from quire.inputs.media.allowed import WORDS
from quire.inputs.media.urls import MediaUrl
from quire.jobs.input.prompts import Preamble
from quire.params.rules import MAX_SEED, show
from quire.params.unknown import meant_by
from quire.replicas.wire import Message
from quire.sampling_params import SamplingParams, StructuredOutputsParams

if TYPE_CHECKING:
    from quire.inputs.quoting import ChatText
    from quire.inputs.tokenizer import Tokenizer

Prompt = str | dict[str, Any]
Made = TypeVar("Made")

# What a row's error is called in the table; the nearest base class counts.
_TYPES: tuple[tuple[type[QuireError], str], ...] = (
    (PromptTooLong, "prompt_too_long"),
    (InvalidPrompt, "invalid_prompt"),
    (InvalidGrammar, "invalid_grammar"),
    (InvalidParams, "invalid_params"),
    (InvalidRequest, "invalid_request"),
    (NotSupported, "not_supported"),
    (InvalidLogits, "nan_logits"),
    (NoTokenLeft, "no_token_left"),
    (GrammarFailed, "grammar_failed"),
    (DoesNotFit, "does_not_fit"),
    (MediumFailed, "medium_failed"),
)
_INDEX = re.compile(r"\Aprompt \d+: ")
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")
MOST_KNOWN, LONGEST_KEY = 64, 4096  # parameters that are remembered, and characters of each


def error_type(error: QuireError) -> str:
    return next((name for kind, name in _TYPES if isinstance(error, kind)), "row_error")


def error_text(error: QuireError) -> str:
    """The message without the row's index in its batch, which changes with every resumption."""
    return _INDEX.sub("", str(error), count=1)


def row_error(error: BaseException) -> QuireError:
    """Turns what templates and tokenizers raised for one row into the error of that row. That
    includes a panic of Rust code, which is not an Exception. An error of the process and not of a
    row (memory, Ctrl-C) is raised again."""
    if isinstance(error, RecursionError):
        return InvalidPrompt("the row nests too deeply to be written out; make it flatter")
    return fault_of_row(error, "it was made into a request")


def result_or_error(make: Callable[[], Made]) -> Made | QuireError:
    """What the call makes of a row, or the error that this row ends with."""
    try:
        return make()
    except BaseException as error:  # see row_error
        return row_error(error)


def failed(row: int, error: QuireError) -> Message:
    kind, text = error_type(error), error_text(error)
    if (fault := error.__cause__) is not None and type(error) is RowError:
        text = f"{text}: {reason(fault)}"  # the owner of a job may see the original error
    return {"kind": "result", "row": row, "error": text, "error_type": kind}


def sampling_params(given: Mapping[str, Any]) -> SamplingParams:
    """Parameters from plain data as the engine keeps them; raises InvalidParams, NotSupported."""
    fields = dict(given)
    if (wanted := fields.pop("structured_outputs", None)) is not None:
        fields["structured_outputs"] = _structured_outputs(wanted)
    if isinstance(bias := fields.get("logit_bias"), Mapping):
        # The keys of a JSON object are text; a key that is no number is refused with its text.
        fields["logit_bias"] = {_token(key): value for key, value in bias.items()}
    known = set(SamplingParams.__struct_fields__)
    if strange := sorted(fields.keys() - known):
        raise InvalidParams(
            f"there is no sampling parameter {strange[0]!r}. {meant_by(strange[0], known)}",
            parameter=strange[0],
        )
    params = SamplingParams(**fields)
    params.settle()
    return params


class SharedParams:
    """Parameters from plain data, checked once for all rows with equal parameters; only their
    seeds may differ. Most rows of a batch have equal ones. Any thread may call it."""

    def __init__(self) -> None:
        self._known: dict[str, SamplingParams] = {}

    def read(self, given: Mapping[str, Any]) -> SamplingParams:
        """Parameters of the row's own; lists in them are shared, and must not be changed."""
        seed, key = given.get("seed"), repr({**given, "seed": None})
        is_plain = seed is None or type(seed) is int and 0 <= seed <= MAX_SEED
        if not is_plain or len(key) > LONGEST_KEY:
            return sampling_params(given)
        found = self._known.get(key)
        if found is None:
            found = sampling_params(given)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = found
        params = object.__new__(SamplingParams)  # half the time that copy.copy takes
        for name in SamplingParams.__slots__:
            setattr(params, name, getattr(found, name))
        params.seed = seed
        return params


def _structured_outputs(wanted: Any) -> StructuredOutputsParams:
    known = [field.name for field in dataclass_fields(StructuredOutputsParams)]
    if not isinstance(wanted, Mapping) or not set(wanted) <= set(known):
        raise InvalidParams(
            f"structured_outputs is an object with fields among {', '.join(known)}, not "
            f"{show(wanted)}",
            parameter="structured_outputs",
            value=wanted,
        )
    return StructuredOutputsParams(**wanted)


def _token(key: Any) -> Any:
    return int(key) if isinstance(key, str) and _TOKEN_ID.fullmatch(key) else key


def refuse_far_too_long(text: str, tokenizer: Tokenizer | None, max_model_len: int) -> None:
    """Raise PromptTooLong once the beginning of a text has twice as many tokens as the model takes:
    to encode a whole cell of many megabytes would take too long."""
    size, count = 16 * max_model_len, 0
    if tokenizer is None or len(text) <= 2 * size:
        return
    for first in range(0, len(text), size):  # a run of blanks has few tokens for its length
        count += len(tokenizer.encode(text[first : first + size]))
        if count >= 2 * max_model_len:
            raise PromptTooLong(
                f"the prompt has {len(text):,} characters and far more than {2 * max_model_len} "
                f"tokens; the model takes {max_model_len} with the answer (max_model_len). Shorten "
                "it, or set truncate_prompt_tokens to keep its end",
                parameter="prompt",
            )


@dataclass(frozen=True, slots=True)
class _Rendered:
    """A conversation as text, written by the model's chat template."""

    chat: ChatText


@dataclass(frozen=True, slots=True)
class EngineRequest:
    row: int
    prompt: Prompt | _Rendered
    params: SamplingParams
    lora: str | None = None  # the name of its adapter


def _media(row: Mapping[str, Any]) -> dict[str, list[MediaUrl]]:
    """The media of a row's columns, by kind."""
    found = {kind: row.get(several) for kind, (_, several) in WORDS.items()}
    return {kind: [MediaUrl(one["url"]) for one in some] for kind, some in found.items() if some}


def _parts(media: Mapping[str, Sequence[MediaUrl]]) -> list[dict[str, Any]]:
    return [
        {"type": f"{kind}_url", f"{kind}_url": {"url": one.url}}
        for kind, some in media.items()
        for one in some
    ]


class RequestReader:
    def __init__(
        self,
        tokenizer: Tokenizer | None,
        preamble: Preamble,
        settings: Sequence[Mapping[str, Any]],
        *,
        chat: bool,
        max_model_len: int,
    ) -> None:
        self._tokenizer, self._preamble, self._chat = tokenizer, preamble, chat
        self._max_model_len = max_model_len
        self._settings = [sampling_params(each) for each in settings]
        self._shared = SharedParams()

    def read(self, rows: Sequence[Mapping[str, Any]]) -> list[EngineRequest | QuireError]:
        """A request or an error for each row; all chats are encoded together."""
        made: list[EngineRequest | QuireError] = []
        chats: list[tuple[int, ChatText]] = []
        for i, row in enumerate(rows):
            found = result_or_error(lambda row=row: self._read(row))  # type: ignore[misc]
            if isinstance(found, EngineRequest) and isinstance(found.prompt, _Rendered):
                chats.append((i, found.prompt.chat))
            made.append(found)
        self._encode(chats, made)
        return made

    def _read(self, row: Mapping[str, Any]) -> EngineRequest:
        """The request of a row; a conversation in it is text and not encoded yet."""
        params, prompt = self._params(row), self._prompt(row)
        if params.truncate_prompt_tokens is None:
            self._check_length(prompt)
        lora = row.get("lora")
        return EngineRequest(row["row"], prompt, params, None if lora is None else lora[0])

    def _params(self, row: Mapping[str, Any]) -> SamplingParams:
        own, seed = row.get("params"), row.get("seed")
        params = self._settings[row.get("setting", 0)] if own is None else self._shared.read(own)
        if "schema" in row:
            params = copy.copy(params)
            params.structured_outputs = StructuredOutputsParams(json=row["schema"])
            params.checked_copy()
        if seed is None or params.seed is not None:
            return params
        params = copy.copy(params)
        params.seed = seed
        return params

    def _prompt(self, row: Mapping[str, Any]) -> Prompt | _Rendered:
        messages, media = row.get("messages"), _media(row)
        if messages is None and not self._chat:
            prompt = row["prompt"]
            text = self._preamble.text(prompt) if isinstance(prompt, str) else prompt
            return {"prompt": text, "multi_modal_data": media} if media else text
        if messages is None:
            messages = self._preamble.messages(row["prompt"])
            if media:
                content = [*_parts(media), {"type": "text", "text": row["prompt"]}]
                messages = [*messages[:-1], {**messages[-1], "content": content}]
        elif media:
            raise InvalidPrompt("media of a column go with a prompt; messages hold their own")
        else:
            messages = self._preamble.before(messages)
        return self._rendered(messages, row.get("chat", {}))

    def _check_length(self, prompt: Prompt | _Rendered) -> None:
        text = prompt.chat.text if isinstance(prompt, _Rendered) else prompt
        if isinstance(text, str):
            refuse_far_too_long(text, self._tokenizer, self._max_model_len)

    def _rendered(self, messages: Sequence[Any], options: Mapping[str, Any]) -> _Rendered:
        from quire.inputs.chat import render_conversation
        from quire.inputs.tokenizer import check_text

        if self._tokenizer is None:
            raise NotSupported("a conversation needs a tokenizer, and the engine has none")
        chat = render_conversation(messages, self._tokenizer, **options)
        check_text(chat.text)
        return _Rendered(chat)

    def _encode(
        self, chats: Sequence[tuple[int, ChatText]], made: list[EngineRequest | QuireError]
    ) -> None:
        """Encode the texts of chats. No special tokens are added: the chat template wrote them."""
        if not chats or self._tokenizer is None:
            return
        encoded = self._tokenizer.encode_each([chat for _, chat in chats], False)
        for (i, chat), ids in zip(chats, encoded, strict=True):
            request = made[i]
            if isinstance(ids, QuireError):
                made[i] = ids
            elif isinstance(request, EngineRequest):
                prompt = {"prompt_token_ids": ids.tolist(), "prompt": chat.text}
                if chat.media is not None:
                    prompt["multi_modal_data"] = chat.media.data
                made[i] = replace(request, prompt=prompt)
