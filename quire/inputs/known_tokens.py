"""Token ids in sampling parameters: whether the model has them, and how many are asked about."""

from __future__ import annotations

from itertools import chain

from quire.errors import InvalidParams
from quire.params.rules import fail
from quire.sampling_params import SamplingParams


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
