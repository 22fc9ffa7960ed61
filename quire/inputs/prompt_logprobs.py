"""How many prompt logprobs one request may keep: a prompt times a vocabulary has no end."""

from __future__ import annotations

from quire.errors import InvalidParams
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
