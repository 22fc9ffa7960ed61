"""The forms in which a prompt may be written: typed dictionaries with vLLM's names and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypeAlias, TypedDict

# What was given beside the text; quire reads text only and refuses these when they are set.
MultiModalDataDict: TypeAlias = Mapping[str, Any]
MultiModalUUIDDict: TypeAlias = Mapping[str, Any]


class _Extras(TypedDict):
    multi_modal_data: NotRequired[MultiModalDataDict | None]
    mm_processor_kwargs: NotRequired[dict[str, Any] | None]
    multi_modal_uuids: NotRequired[MultiModalUUIDDict | None]
    cache_salt: NotRequired[str | None]


class TextPrompt(_Extras):
    """A prompt as text."""

    prompt: str


class TokensPrompt(_Extras):
    """A prompt as token ids; `prompt` is the text they came from, if anyone knows it."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str | None]
    token_type_ids: NotRequired[list[int] | None]


class EmbedsPrompt(TypedDict):
    """A prompt as embeddings; known, not supported."""

    prompt_embeds: Any
    prompt: NotRequired[str | None]
    cache_salt: NotRequired[str | None]


class DataPrompt(TypedDict):
    """A prompt in a plugin's own format; known, not supported."""

    data: Any
    data_format: str


SingletonPrompt: TypeAlias = str | list[int] | TextPrompt | TokensPrompt | EmbedsPrompt


class ExplicitEncoderDecoderPrompt(TypedDict):
    """A prompt for each half of a model whose decoder attends to an encoder (Whisper)."""

    encoder_prompt: SingletonPrompt
    decoder_prompt: SingletonPrompt | None


PromptType: TypeAlias = SingletonPrompt | ExplicitEncoderDecoderPrompt
