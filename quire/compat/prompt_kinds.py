"""Functions by which scripts for vLLM make dicts of prompts, and take them apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def token_inputs(
    prompt_token_ids: list[int],
    token_type_ids: list[int] | None = None,
    prompt: str | None = None,
    cache_salt: str | None = None,
    **media: Any,
) -> dict[str, Any]:
    """A prompt of token ids as a dict, with media by the names that a prompt has for them."""
    said = {
        "prompt": prompt,
        "token_type_ids": token_type_ids,
        "cache_salt": cache_salt,
        **media,
    }
    given = {key: value for key, value in said.items() if value is not None}
    return {"type": "token", "prompt_token_ids": prompt_token_ids, **given}


def build_explicit_enc_dec_prompt(
    encoder_prompt: Any,
    decoder_prompt: Any,
    mm_processor_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A prompt of two parts; options of the processor stand beside its media, in the first."""
    if mm_processor_kwargs:
        first = (
            encoder_prompt if isinstance(encoder_prompt, Mapping) else {"prompt": encoder_prompt}
        )
        encoder_prompt = {**first, "mm_processor_kwargs": dict(mm_processor_kwargs)}
    return {"encoder_prompt": encoder_prompt, "decoder_prompt": decoder_prompt}


def zip_enc_dec_prompts(
    enc_prompts: Iterable[Any],
    dec_prompts: Iterable[Any],
    mm_processor_kwargs: Iterable[Mapping[str, Any]] | Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Prompts of two parts from as many of each; the options are of all, or of one each."""
    pairs = list(zip(enc_prompts, dec_prompts, strict=True))
    if mm_processor_kwargs is None or isinstance(mm_processor_kwargs, Mapping):
        mm_processor_kwargs = [mm_processor_kwargs or {}] * len(pairs)
    return [
        build_explicit_enc_dec_prompt(*pair, options)
        for pair, options in zip(pairs, mm_processor_kwargs, strict=True)
    ]


def to_enc_dec_tuple_list(enc_dec_prompts: Iterable[Mapping[str, Any]]) -> list[tuple[Any, Any]]:
    return [(prompt["encoder_prompt"], prompt["decoder_prompt"]) for prompt in enc_dec_prompts]
