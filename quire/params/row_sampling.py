"""RowSampling: the part of a request's SamplingParams that goes with its row to the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from quire.sampling_params import SamplingParams

# Tokens in the lists of each row for which a device always has room.
FEW_LISTED = 64
# A bias of at most this forbids its token: beside other logits nothing of such a number is left,
# and after penalties and temperature it can still be told from -inf.
FORBIDDING_BIAS = -1e20
# The longest bad word, in tokens, that a device compares with a row's last tokens.
MOST_SPELLED = 64

_Ints = npt.NDArray[np.int32]
_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How a row draws, in numbers: the SamplingParams that a device can follow.

    top_k 0 means no limit. `allowed_ids` None: all tokens are allowed. A bad word is the ids that
    spell it; a bias of -inf forbids its token. `num_logprobs` None: no logprobs; -1: those of the
    whole vocabulary; with `logprob_ids` those of these tokens instead of the likeliest. `guided`:
    every draw has a mask. `never_ids` are never drawn, `not_first_ids` not as the first output.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_tokens: int = 0
    bias_ids: _Ints = field(default_factory=lambda: np.empty(0, np.int32))
    biases: _Floats = field(default_factory=lambda: np.empty(0, np.float32))
    allowed_ids: _Ints | None = None
    bad_words: tuple[_Ints, ...] = ()
    num_logprobs: int | None = None
    logprob_ids: _Ints | None = None
    guided: bool = False
    never_ids: _Ints = field(default_factory=lambda: np.empty(0, np.int32))
    not_first_ids: _Ints = field(default_factory=lambda: np.empty(0, np.int32))

    @classmethod
    def of(cls, params: SamplingParams) -> RowSampling:
        bias, named = params.logit_bias or {}, params.logprob_token_ids
        allowed, words = params.allowed_token_ids, params._bad_words_token_ids or ()
        asks = params.logprobs is not None or bool(named)
        never, not_first = (np.array(ids, np.int32) for ids in params._suppressed_token_ids)
        return cls(
            temperature=params.temperature,
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            min_tokens=params.min_tokens,
            bias_ids=np.array([int(token) for token in bias], np.int32),
            biases=_added(np.array(list(bias.values()), np.float32)),
            allowed_ids=None if allowed is None else np.array(allowed, np.int32),
            bad_words=tuple(np.array(word, np.int32) for word in words),
            num_logprobs=(params.logprobs or 0) if asks else None,
            logprob_ids=np.array(named, np.int32) if named else None,
            guided=params.structured_outputs is not None,
            never_ids=never,
            not_first_ids=not_first,
        )

    @classmethod
    def of_one(cls, token_id: int, params: SamplingParams) -> RowSampling:
        """Sampling that can only draw this token, with the logprobs that `params` ask for."""
        whole = cls.of(params)
        return cls(
            temperature=0.0,
            allowed_ids=np.array([token_id], np.int32),
            num_logprobs=whole.num_logprobs,
            logprob_ids=whole.logprob_ids,
        )

    @property
    def has_penalties(self) -> bool:
        return penalises(self)

    @property
    def suppresses(self) -> bool:
        """Whether the model's own files rule out some tokens."""
        return bool(len(self.never_ids) or len(self.not_first_ids))


def forbids_by_bias(params: SamplingParams) -> bool:
    """Whether a bias is so low that its token is never drawn."""
    return any(bias <= FORBIDDING_BIAS for bias in (params.logit_bias or {}).values())


def _added(biases: _Floats) -> _Floats:
    biases[biases <= FORBIDDING_BIAS] = -np.inf
    return biases


def penalises(params: RowSampling | SamplingParams) -> bool:
    """Whether tokens that came before are made likelier, or less likely, to come again."""
    penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    return penalties != (1, 0, 0)


def can_forbid(words: Iterable[Sized], not_first_ids: Sized, min_tokens: int) -> bool:
    """Whether a device can forbid these bad words, each the ids that spell it, and tokens that may
    not come yet: a row has one list of such tokens, with one position from which they may come."""
    too_long = any(len(word) > MOST_SPELLED for word in words)
    return not too_long and not (len(not_first_ids) and min_tokens > 1)


def lists_few(params: SamplingParams) -> bool:
    """Whether a row's lists are short, even with every stop id that devices compare."""
    words = params._bad_words_token_ids or ()
    listed = 2 * len(params.logit_bias or ()) + _words_listed(words)
    listed += sum(map(len, params._suppressed_token_ids))
    open_ended = penalises(params) or params.allowed_token_ids is not None
    return not open_ended and listed <= FEW_LISTED // 2


def _words_listed(words: Sequence[Sized]) -> int:
    """Entries that bad words take in a row's lists: each word of several tokens takes as many as
    the longest, and the row's last tokens are kept to compare with them."""
    several = [len(word) for word in words if len(word) > 1]
    longest = max(several, default=1)
    return len(words) - len(several) + len(several) * longest + longest - 1
