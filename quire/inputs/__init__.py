"""What a caller may pass as a prompt, under the names and keys of `vllm.inputs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypeAlias, TypedDict

__all__ = [
    "DataPrompt",
    "EmbedsPrompt",
    "ExplicitEncoderDecoderPrompt",
    "MultiModalDataDict",
    "MultiModalUUIDDict",
    "PromptType",
    "SingletonPrompt",
    "TextPrompt",
    "TokensPrompt",
]

# Media beside the text, by kind, and names for them (media/given.py).
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
    """A prompt as token ids; `prompt` is their text, if the caller has it."""

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
