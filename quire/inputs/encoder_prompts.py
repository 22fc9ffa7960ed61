"""Joins prompts in two parts, for models whose decoder attends to an encoder, to one prompt: with
the text or token ids of the decoder and the media of the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import InvalidPrompt

START = "<|startoftranscript|>"
_PARTS = ("encoder_prompt", "decoder_prompt")
NO_SOUND = (
    'the prompt has no sound; the model hears one: {"prompt": "<|startoftranscript|>...", '
    '"multi_modal_data": {"audio": (samples, rate)}}'
)
_EXAMPLE = (
    '{"encoder_prompt": {"prompt": "", "multi_modal_data": {"audio": ...}}, "decoder_prompt": '
    '"<|startoftranscript|>..."}'
)


def as_one_prompt(given: Any) -> Any:
    """The joined prompt; a prompt without parts is returned unchanged."""
    if not isinstance(given, Mapping) or not any(part in given for part in _PARTS):
        return given
    encoder, decoder = (given.get(part) for part in _PARTS)
    if strange := sorted(str(key) for key in given if key not in _PARTS):
        raise _wrong(f"a prompt of two parts has {strange[0][:40]!r} beside them")
    if not isinstance(encoder, Mapping):
        raise _wrong(f"the encoder_prompt is a {type(encoder).__name__}")
    if encoder.get("prompt") or encoder.get("prompt_token_ids"):
        raise _wrong("the encoder_prompt holds text; the encoder takes media alone")
    if decoder is None:
        if "decoder_prompt" not in given:
            raise _wrong("the decoder_prompt is missing")
        decoder = START  # in scripts for vLLM None means the token that begins every answer
    if not isinstance(decoder, Mapping):
        decoder = {"prompt" if isinstance(decoder, str) else "prompt_token_ids": decoder}
    media = {key: value for key, value in encoder.items() if not key.startswith("prompt")}
    if twice := sorted(str(key) for key in media.keys() & decoder.keys()):
        raise _wrong(f"both parts have {twice[0]!r}")
    return {**decoder, **media}


def _wrong(why: str) -> InvalidPrompt:
    return InvalidPrompt(f"{why}; it looks like {_EXAMPLE}", parameter="prompt")
