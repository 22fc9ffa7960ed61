"""Turns a list of choices into the token sequences that the model scores.

A choice is written in its canonical tokens: those that the tokenizer makes of its text. An answer
counts for the longest choice that it begins with. So it counts for at most one choice, also if one
choice begins another ("a" and "ab"), and a full stop or an explanation after it does not lower its
score. No end token is scored, so choices of one token need only the pass over the prompt.

Some requests can only be answered token by token, by masked decoding. That happens unless they have
choice_mode="whole".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from quire.errors import InvalidParams, PromptTooLong
from quire.inputs.tokenizer import Tokenizer
from quire.request import Choices, Ints
from quire.sampling_params import SamplingParams

MOST_CHOICES = 16_384
# Log-probabilities that one request may return, of all tokens of all choices together.
MOST_LOGPROBS = 2**22
# Texts put before a choice, because some tokenizers add a space at the beginning of a text: after
# one of these the choice has its tokens without that space.
_BEFORE = ("", "\n", ":")
_KEPT = 64  # lists whose tokens are remembered, since many rows share a list


class ChoiceReader:
    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        most_tokens: int,
        edits_logits: bool = False,
    ) -> None:
        """`most_tokens` is the limit of a row; `edits_logits`: the LLM has logits processors for
        all rows."""
        self._vocab_size, self._most_tokens = vocab_size, most_tokens
        self._edits_logits, self._has_tokenizer = edits_logits, tokenizer is not None

        @lru_cache(maxsize=_KEPT)
        def spelled(texts: tuple[str, ...]) -> Choices | str:
            return "" if tokenizer is None else spell(texts, tokenizer, vocab_size)

        self._spelled = spelled

    def read(self, params: SamplingParams) -> Choices | None:
        """The choices to score as a whole; None if there are none, or if a grammar must be followed
        token by token."""
        wanted = params.structured_outputs
        if wanted is None or wanted.choice is None or wanted.choice_mode == "tokens":
            return None
        if not self._has_tokenizer:
            return None  # refused elsewhere, with all that is about text
        texts = tuple(dict.fromkeys(wanted.choice))
        if len(texts) > MOST_CHOICES:
            _refuse_whole(params, f"there are {len(texts)}, more than {MOST_CHOICES}")
            return None
        choices = self._spelled(texts)
        if isinstance(choices, str):
            _refuse_whole(params, choices)
            return None
        asked = _asked_by_token(params, choices, self._vocab_size)
        if asked is None and self._edits_logits:
            asked = "LLM(logits_processors=...)"
        if asked is not None:
            _refuse_whole(params, f"{asked} goes token by token")
            return None
        return choices

    def for_request(
        self, choices: Choices | None, params: SamplingParams, num_prompt: int, processors: Any
    ) -> Choices | None:
        """The same for one request, given its logits processors."""
        if choices is None:
            return None
        if processors:
            _refuse_whole(params, "logits_processors go token by token")
            return None
        longest = max(map(len, choices.token_ids))
        if num_prompt + longest - 1 > self._most_tokens:  # the last token is not fed
            raise PromptTooLong(
                f"the prompt has {num_prompt} tokens and the longest choice {longest}; the model "
                f"and the KV cache take {self._most_tokens} (max_model_len, "
                "kv_cache_memory_bytes). Shorten one of them",
                parameter="prompt",
                value=num_prompt,
            )
        return choices


def spell(texts: Sequence[str], tokenizer: Tokenizer, vocab_size: int) -> Choices | str:
    """The choices in their canonical tokens, or why one has none."""
    found: dict[int, Ints] = {}
    for before in _BEFORE:
        left = [i for i in range(len(texts)) if i not in found]
        encoded = tokenizer.encode_batch([before + texts[i] for i in left], False)
        for i, ids in zip(left, encoded, strict=True):
            own = _ending(ids, texts[i].encode(), tokenizer, vocab_size)
            if own is not None:
                found[i] = own
    for i, text in enumerate(texts):
        if i not in found:
            return f"the tokenizer has no plain tokens that spell {text!r}"
    token_ids = tuple(found[i] for i in range(len(texts)))
    return Choices(tuple(texts), token_ids, _longer(token_ids))


def _ending(ids: Ints, wanted: bytes, tokenizer: Tokenizer, vocab_size: int) -> Ints | None:
    """The last of these tokens that spell exactly `wanted`, as plain text."""
    pieces, special = tokenizer.token_bytes.pieces(False, False), tokenizer.special_ids
    size, first = 0, len(ids)
    while first and size < len(wanted):
        first -= 1
        token = int(ids[first])
        if token >= vocab_size or token in special:
            return None
        size += len(pieces[token])
    own = ids[first:]
    return own if b"".join(pieces[int(t)] for t in own) == wanted else None


def _longer(token_ids: Sequence[Ints]) -> tuple[tuple[int, ...], ...]:
    """For each choice the next longer ones that begin with it. In sorted order a choice comes right
    before all that begin with it."""
    listed = [ids.tolist() for ids in token_ids]
    longer: list[list[int]] = [[] for _ in listed]
    begun: list[int] = []  # each begins the next, and all of them what was last looked at
    for i in sorted(range(len(listed)), key=lambda i: listed[i]):
        while begun and listed[i][: len(listed[begun[-1]])] != listed[begun[-1]]:
            begun.pop()
        if begun:
            longer[begun[-1]].append(i)
        begun.append(i)
    return tuple(map(tuple, longer))


def _asked_by_token(params: SamplingParams, choices: Choices, vocab_size: int) -> str | None:
    """The parameter that only drawing token by token can honour, if there is one."""
    for name in ("logit_bias", "allowed_token_ids", "bad_words", "logits_processors"):
        if getattr(params, name):
            return name
    for name in ("prompt_logprobs", "prompt_logprob_token_ids", "logprob_token_ids"):
        if getattr(params, name) is not None:
            return name
    num_top, num_tokens = params.num_logprobs or 0, sum(map(len, choices.token_ids))
    if num_tokens * (vocab_size if num_top == -1 else num_top) > MOST_LOGPROBS:
        return f"logprobs={num_top} of {num_tokens} tokens"
    return None


def _refuse_whole(params: SamplingParams, why: str) -> None:
    """Raise if choice_mode="whole" is set, since this choice can only be drawn token by token."""
    wanted = params.structured_outputs
    if wanted is not None and wanted.choice_mode == "whole":
        raise InvalidParams(
            f"these choices cannot be taken as a whole: {why}; leave choice_mode out, and they are "
            "drawn token by token",
            parameter="choice_mode",
            value=wanted.choice_mode,
        )
