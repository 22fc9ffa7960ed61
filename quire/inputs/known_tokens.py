"""Checks the tokens of prompts and parameters: whether the model has them, whether they fit, and
how many logprobs are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from quire.errors import InvalidParams, InvalidPrompt, PromptTooLong, QuireError
from quire.inputs.tokenizer import Tokenizer
from quire.params.rules import fail
from quire.request import Ints, NamedTokens
from quire.sampling_params import SamplingParams

MOST_BYTES = 2 << 30  # of a request's prompt logprobs, which may be a prompt times a vocabulary
# Bytes for one logprob: in arrays, or in flat lists.
_ARRAY_BYTES, _FLAT_BYTES = 8, 100


def check_vocabulary(params: SamplingParams, vocab_size: int, *, max_logprobs: int = -1) -> None:
    """Raise InvalidParams for a token id the model does not have, or more logprobs than the
    engine's max_logprobs (-1: the whole vocabulary) allows."""
    names = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "logit_bias")
    ids = {name: getattr(params, name) or () for name in names}
    lines = params.prompt_logprob_token_ids or ()
    ids["prompt_logprob_token_ids"] = chain.from_iterable(lines)
    for name, tokens in ids.items():
        for token in tokens:
            if token >= vocab_size:
                hint = "Ids come from the model's own tokenizer."
                rule = f"made of token ids below the vocabulary's size, {vocab_size}"
                fail(InvalidParams, name, rule, token, hint)
    limit = vocab_size if max_logprobs == -1 else max_logprobs
    hint = "LLM(max_logprobs=-1) allows the whole vocabulary."
    for name in ("logprobs", "prompt_logprobs"):
        wanted = getattr(params, name)
        if wanted is not None and (vocab_size if wanted == -1 else wanted) > limit:
            fail(InvalidParams, name, f"at most {limit}", wanted, hint)
    widest = max(map(len, lines), default=0)
    if widest > limit:
        rule = f"made of lines of at most {limit} ids"
        fail(InvalidParams, "prompt_logprob_token_ids", rule, widest, hint)


def check_encoded(ids: Ints, vocab_size: int) -> Ints | QuireError:
    """The ids that a tokenizer made of a text, or their error."""
    if not len(ids):
        return InvalidPrompt(
            "the text gives no tokens at all; give it at least one character that counts",
            parameter="prompt",
        )
    if int(ids.max()) >= vocab_size:
        return InvalidPrompt(
            f"the tokenizer gives token {int(ids.max())}, and the model has only "
            f"{vocab_size}; the tokenizer is another model's, or the text names a token "
            "that was added to it later",
            parameter="prompt",
            value=int(ids.max()),
        )
    return ids


def check_length(count: int, num_media: int, max_model_len: int, pool_tokens: int) -> None:
    """Raise PromptTooLong if so many tokens, some of them of media, do not fit. The messages have
    vLLM's two wordings, by which programs recognise this error."""
    if count < max_model_len and count <= pool_tokens:
        return
    has = f"the prompt (length {count})" + f", {num_media} of them of media," * bool(num_media)
    if count >= max_model_len:
        way_out = f"Shorten it, or set truncate_prompt_tokens={max_model_len - 1} to keep its end"
        if max_model_len == 1:
            way_out = "Set max_model_len to at least 2"
        elif num_media:
            way_out = "Shorten the text, or pass fewer or smaller media, which are not cut"
        raise PromptTooLong(
            f"{has} with one token of an answer is longer than the maximum model length of "
            f"{max_model_len} (max_model_len): the maximum context length is {max_model_len}, so "
            f"at most {max_model_len - 1} tokens here. {way_out}",
            parameter="prompt",
            value=count,
        )
    raise PromptTooLong(
        f"{has} is too long: the KV cache has room for {pool_tokens} tokens in "
        "all. Shorten it, or give the cache more memory (kv_cache_memory_bytes, or "
        "num_gpu_blocks_override where that is set)",
        parameter="prompt",
        value=count,
    )


def check_prompt_logprobs(num_prompt: int, params: SamplingParams, vocab_size: int) -> None:
    """Raise where the prompt logprobs of a request would take more than MOST_BYTES."""
    wanted = params.prompt_logprobs
    if wanted is None:
        return
    width = vocab_size if wanted == -1 else min(wanted, vocab_size)
    each = _FLAT_BYTES if params.flat_logprobs else _ARRAY_BYTES
    num_bytes = (num_prompt - 1) * width * each
    if num_bytes > MOST_BYTES:
        raise InvalidParams(
            f"prompt_logprobs={wanted} of a prompt of {num_prompt:,} tokens are "
            f"{num_prompt - 1:,} x {width:,} log-probabilities, {num_bytes / 2**30:.1f} GiB; at "
            f"most {MOST_BYTES / 2**30:g} GiB are kept for one prompt. Ask for fewer, or score the "
            "prompt in parts",
            parameter="prompt_logprobs",
            value=wanted,
        )


def named_tokens(num_prompt: int, params: SamplingParams) -> NamedTokens | None:
    """The tokens that a request names for the positions of its prompt."""
    lines = params.prompt_logprob_token_ids
    if lines is None:
        return None
    start = params.prompt_logprob_start or 0
    if len(lines) != num_prompt - 1 - start:
        raise InvalidParams(
            f"prompt_logprob_token_ids has {len(lines)} lines, and the prompt {num_prompt} tokens: "
            f"give a line for each of these from number {start} (prompt_logprob_start) on, but for "
            f"the last, {max(num_prompt - 1 - start, 0)} in all",
            parameter="prompt_logprob_token_ids",
            value=len(lines),
        )
    # With prompt_logprobs every token is scored, those too that nothing is named for.
    blank = 0 if params.prompt_logprobs is None else start
    ids = np.full((blank + len(lines), max(map(len, lines))), -1, np.int32)
    for line, tokens in zip(ids[blank:], lines, strict=True):
        line[: len(tokens)] = tokens
    return NamedTokens(start - blank, ids)


def bad_word_ids(tokenizer: Tokenizer, words: Sequence[str], vocab_size: int) -> list[list[int]]:
    """The token sequences that write a bad word: at the start of a text, and after a space."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip() or word
        for text in (bare, f" {bare}"):
            ids = tuple(tokenizer.encode(text, add_special_tokens=False).tolist())
            if ids and max(ids) >= vocab_size:
                raise InvalidParams(
                    f"bad_words has {word!r}, whose token {max(ids)} the model does not have "
                    f"(it has {vocab_size})",
                    parameter="bad_words",
                    value=word,
                )
            if ids:
                found[ids] = None
    return [list(ids) for ids in found]
