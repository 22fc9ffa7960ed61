"""What is asked about the tokens of a prompt: how many logprobs one request may keep (a prompt
times a vocabulary has no end), and which other tokens are scored in their places."""

from __future__ import annotations

import numpy as np

from quire.errors import InvalidParams
from quire.request import NamedTokens
from quire.sampling_params import SamplingParams

MOST_BYTES = 2 << 30
# What one takes: in arrays, or in flat lists.
_ARRAY_BYTES, _FLAT_BYTES = 8, 100


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
    """The tokens that a request names for the places of its prompt's."""
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
