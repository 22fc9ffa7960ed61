"""Parses and checks prompts in all forms that a caller may pass.

One prompt is a str, a list (or array, or tensor) of token ids, or a dictionary of forms.py. Several
are any iterable of these, also a lazy one. Nothing is encoded here and nothing is written to.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

import msgspec
import numpy as np

from quire.base.boundary import refusing
from quire.errors import InvalidPrompt, InvalidRequest, NotSupported
from quire.inputs.quoting import ChatText
from quire.inputs.token_ids import as_numpy, checked_ids
from quire.inputs.tokenizer import check_text
from quire.request import Ints

_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
_TYPES = {"token": "prompt_token_ids", "text": "prompt"}  # what "type" may say, as in vLLM's dicts
_MEDIA_KEYS = ("multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs")
_HOLD_MEDIA = {"multi_modal_data", "encoder_prompt"}  # keys of a prompt that hold media
_REFUSED = {
    **dict.fromkeys(_MEDIA_KEYS, "text alone is read here; leave it out"),
    "token_type_ids": "decoder-only models have no token types; leave it out",
    "prompt_embeds": "pass the prompt as text or as token ids",
    "encoder_prompt": "this model has no encoder; pass one prompt",
    "decoder_prompt": "this model has no encoder; pass one prompt",
    "data": "pass the prompt as text or as token ids",
    "data_format": "pass the prompt as text or as token ids",
}


@dataclass(frozen=True, slots=True)
class GivenMedia:
    """Media beside a prompt, as the caller wrote them."""

    data: Mapping[Any, Any]
    uuids: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)


class ParsedPrompt(msgspec.Struct, frozen=True, eq=False):
    """One prompt as given: token ids, or text that is still to be encoded."""

    text: str | None
    token_ids: Ints | None
    cache_salt: str = ""
    literal: frozenset[int] = frozenset()  # where no special token begins
    media: GivenMedia | None = None

    @property
    def chat_text(self) -> ChatText:
        return ChatText(str(self.text), self.literal)


def has_media(given: Any) -> bool:
    """Whether the prompt seems to have media; nothing of them is read."""
    if isinstance(given, ChatText):
        return given.media is not None
    return isinstance(given, dict) and not _HOLD_MEDIA.isdisjoint(given)


def is_single(prompts: object) -> bool:
    """Whether this is one prompt; `[1, 2, 3]` is (token ids), `[]` and `["a"]` are not."""
    if isinstance(prompts, str | bytes | bytearray | Mapping | Number) or prompts is None:
        return True
    if isinstance(prompts, np.ndarray):
        return prompts.ndim < 2 and prompts.size > 0
    return isinstance(prompts, Sequence) and len(prompts) > 0 and isinstance(prompts[0], Number)


def split_prompts(prompts: Any) -> Iterable[Any]:
    """The single prompts, one after the other; a lazy iterable stays lazy.

    split_prompts("a") gives ["a"], split_prompts([1, 2]) gives [[1, 2]], split_prompts([[1], "a"])
    is given back as it is. A column of texts (a numpy array, a Series) is taken as a list.
    """
    prompts = as_numpy(_column_as_list(prompts))
    if is_single(prompts):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise InvalidPrompt(
            f"prompts is a {type(prompts).__name__}; pass text, token ids, a dict, or an iterable "
            "of these",
            parameter="prompts",
        )
    return prompts


def _column_as_list(prompts: Any) -> Any:
    """The texts of a column as a list; whatever else it is, as it is."""
    if not isinstance(prompts, np.ndarray) and callable(getattr(prompts, "to_numpy", None)):
        if callable(getattr(prompts, "to_pylist", None)):  # of Arrow, which copies no text as numpy
            return prompts.to_pylist()
        if len(getattr(prompts, "shape", ())) > 1:
            raise InvalidPrompt(
                f"prompts is a {type(prompts).__name__}, a table; pass one of its columns",
                parameter="prompts",
            )
        prompts = np.asarray(prompts.to_numpy())
    if isinstance(prompts, np.ndarray) and prompts.ndim == 1 and prompts.dtype.kind in "UOT":
        return prompts.tolist()
    return prompts


def merge_prompts(prompts: Any, prompt_token_ids: Any) -> Any:
    """`generate(prompts, prompt_token_ids=...)` of older scripts as prompts alone.

    merge_prompts(["a", "b"], [[1], [2]]) gives two TokensPrompts that keep their texts.
    """
    if prompt_token_ids is None:
        return prompts
    rows = list(split_prompts(prompt_token_ids))
    if prompts is None:
        return [{"prompt_token_ids": row} for row in rows]
    texts = list(split_prompts(prompts))
    if len(texts) != len(rows):
        raise InvalidPrompt(
            f"prompts has {len(texts)} entries and prompt_token_ids {len(rows)}; they go together "
            "one by one, so make them as many, or pass only one of the two",
            parameter="prompt_token_ids",
            value=len(rows),
        )
    return [
        {"prompt_token_ids": row, "prompt": text if isinstance(text, str) else None}
        for text, row in zip(texts, rows, strict=True)
    ]


def parse_prompt(
    given: Any, vocab_size: int, *, with_media: bool = False, packed: Ints | None = None
) -> ParsedPrompt:
    """One prompt, checked in everything that needs no tokenizer. Media beside it are refused,
    unless `with_media`. `packed`: its token ids, if they were checked before."""
    if isinstance(given, str):
        return ParsedPrompt(_checked_text(given), None)
    if isinstance(given, ChatText):
        if given.media is not None and not with_media:
            raise NotSupported("the messages hold media, and text alone is read here")
        return ParsedPrompt(
            _checked_text(given.text), None, literal=given.literal, media=given.media
        )
    if isinstance(given, Mapping):
        media = _media_of(given) if with_media else None
        return _from_mapping(given, vocab_size, media, with_media, packed)
    if packed is not None:
        return ParsedPrompt(None, packed)
    given = as_numpy(given)
    if isinstance(given, np.ndarray | list | tuple) or (
        isinstance(given, Sequence) and not isinstance(given, bytes | bytearray)
    ):
        return ParsedPrompt(None, checked_ids(given, vocab_size))
    hint = "; decode bytes to text first" if isinstance(given, bytes | bytearray) else ""
    raise InvalidPrompt(
        f"a prompt is text, a list of token ids or a dict, not a {type(given).__name__}{hint}",
        parameter="prompt",
    )


def _from_mapping(
    given: Mapping[Any, Any],
    vocab_size: int,
    media: GivenMedia | None,
    with_media: bool,
    packed: Ints | None,
) -> ParsedPrompt:
    for key, value in given.items():
        if key in _KEYS or (with_media and key in _MEDIA_KEYS):
            continue
        if key == "type":
            _check_type(value, given)
            continue
        if key in _REFUSED and value is not None and not _is_empty(value):
            raise NotSupported(f"prompt has {key!r}: {_REFUSED[key]}")
        if key not in _REFUSED:
            near = difflib.get_close_matches(str(key), _KEYS, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(_KEYS)}"
            if key in ("role", "content", "messages"):
                meant = "; conversations, lists of messages, are for chat()"
            if key == "input_ids":
                meant = '; write {"prompt_token_ids": encoded["input_ids"]}'
            raise InvalidPrompt(
                f"a prompt has no key {key!r}{meant}", parameter="prompt", value=key
            )
    text, token_ids, salt = map(given.get, _KEYS)
    if text is None and token_ids is None:
        raise InvalidPrompt(
            'the dict has neither "prompt" (text) nor "prompt_token_ids"', parameter="prompt"
        )
    if text is not None and not isinstance(text, str):
        raise InvalidPrompt(
            f'"prompt" is a {type(text).__name__}; it should be text (token ids go into '
            '"prompt_token_ids")',
            parameter="prompt",
        )
    if salt is not None and (not isinstance(salt, str) or not salt or "\0" in salt):
        raise InvalidPrompt(
            f'"cache_salt" is {salt!r}; it should be text without NUL characters, or left out',
            parameter="cache_salt",
        )
    if text is not None:
        check_text(text)
    if token_ids is not None:
        ids = checked_ids(token_ids, vocab_size) if packed is None else packed
        return ParsedPrompt(text, ids, salt or "", media=media)
    return ParsedPrompt(_checked_text(text), None, salt or "", media=media)


def _check_type(kind: object, given: Mapping[Any, Any]) -> None:
    """The key beside "type" says the same again, so the two must agree."""
    key = _TYPES.get(kind) if isinstance(kind, str) else None
    if key is None or given.get(key) is None:
        meant = " or ".join(f'"{name}" (with "{key}")' for name, key in _TYPES.items())
        raise InvalidPrompt(
            f'"type" is {kind!r} in a prompt with {", ".join(map(str, given))}; it may be {meant}, '
            "or be left out",
            parameter="type",
            value=kind,
        )


def _media_of(given: Mapping[Any, Any]) -> GivenMedia | None:
    data, uuids, options = (given.get(key) for key in _MEDIA_KEYS)
    for key, value in (("multi_modal_data", data), ("mm_processor_kwargs", options)):
        if value is not None and not isinstance(value, Mapping):
            raise InvalidPrompt(
                f'"{key}" is a {type(value).__name__}; it should be a dict, such as '
                '{"image": ...}',
                parameter=key,
            )
    if not data or all(value is None or _is_empty(value) for value in data.values()):
        return None
    return GivenMedia(data, uuids, dict(options or {}))


def _is_empty(value: object) -> bool:
    return isinstance(value, Mapping | list | tuple | str) and len(value) == 0


def _checked_text(text: Any) -> str:
    if not text:
        raise InvalidPrompt(
            "the prompt is empty; give it at least one character (or token)", parameter="prompt"
        )
    check_text(text)
    return str.__str__(text)  # of an enum its value, and not its name


_reading = refusing(lambda why: InvalidPrompt(f"the prompt cannot be read: {why}"))


def result_or_error(function: Callable[..., Any], *args: Any) -> Any:
    """The function's result or error: a prompt may be any object, whose methods may raise any
    exception."""
    try:
        with _reading:
            return function(*args)
    except (InvalidRequest, NotSupported) as error:
        return error


def naming_prompt(made: Any, index: int) -> Any:
    """An error with the number of the prompt that it belongs to; anything else as it is."""
    if isinstance(made, InvalidRequest):
        return made.at(index)
    return NotSupported(f"prompt {index}: {made}") if isinstance(made, NotSupported) else made
