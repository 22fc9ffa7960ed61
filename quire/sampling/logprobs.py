"""Log-probabilities: of the token itself, its rank, and those of the likeliest tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.request import Ints
from quire.sampling.scan import all_falling, bounds_of, count_larger, flat_nonzero, heads, index
from quire.step import Scores

WHOLE_VOCABULARY = -1


def token_logprobs(values: Tensor, tokens: Tensor, num_top: int, ids: Ints | None = None) -> Scores:
    """Scores of one token per line of values [lines, vocab], which are logprobs or logits.

    values [-2 -1 -3], token 0, num_top 2 -> logprob -2, rank 2, top_ids [1 0], top_logprobs
    [-1 -2]. Equal values are ordered by token id. With `ids` the other tokens are these instead of
    the likeliest.
    """
    own = values.gather(1, tokens[:, None])
    ranks = count_larger(values, own) + 1
    if ids is not None:
        others = index(ids, values.device).expand(len(values), -1)
    else:
        others = likeliest(values, num_top)
    return Scores(
        tokens.to(torch.int32).cpu().numpy(),
        own[:, 0].float().cpu().numpy(),
        ranks.to(torch.int32).cpu().numpy(),
        others.to(torch.int32).cpu().numpy(),
        values.gather(1, others).float().cpu().numpy(),
    )


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Scores of given tokens, one line each, still on the device."""

    logprobs: Tensor  # float32 [tokens]
    ranks: Tensor  # int64 [tokens]
    top_ids: Tensor  # int64 [tokens, k]
    top_logprobs: Tensor  # float32 [tokens, k]

    def columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.logprobs, self.ranks, self.top_ids, self.top_logprobs


def score_tokens(
    values: Tensor, shared_lines: Tensor, tokens: Tensor, num_top: int, named: Tensor
) -> ScoredTokens:
    """Score tokens[i] by line i of values [lines, vocab], float32; tokens after the last line use
    the lines that `shared_lines` names. Beside each are the likeliest, and then named[i]."""
    num_lines, top_ids = len(values), likeliest(values, num_top)
    parts = [_score_lines(values, tokens[:num_lines], top_ids, named[:num_lines])]
    if len(shared_lines):
        shared, top_ids = (each.index_select(0, shared_lines) for each in (values, top_ids))
        parts.append(_score_lines(shared, tokens[num_lines:], top_ids, named[num_lines:]))
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(part.columns() for part in parts), strict=True)
    return ScoredTokens(*(torch.cat(column) for column in columns))


def _score_lines(values: Tensor, tokens: Tensor, top_ids: Tensor, named: Tensor) -> ScoredTokens:
    own = values.gather(1, tokens[:, None])
    ranks = 1 + count_larger(values, own)
    if named.shape[1]:
        # -1 names no token: the value read for it is dropped when the answer is made.
        top_ids = torch.cat([top_ids, named.clamp(min=0)], 1)
    return ScoredTokens(own[:, 0], ranks, top_ids, values.gather(1, top_ids))


def likeliest(values: Tensor, num_top: int) -> Tensor:
    """The tokens with the largest values [lines, num_top], the lowest ids among equals."""
    lines, vocab = values.shape
    if num_top == WHOLE_VOCABULARY or num_top >= vocab:
        return all_falling(values)
    chosen = torch.empty(lines, num_top, dtype=torch.int64, device=values.device)
    if num_top == 0:
        return chosen
    everyone = torch.arange(lines, device=values.device)
    few = []
    for head in heads(values, bounds_of(values, torch.full_like(everyone, num_top)), everyone):
        enough = (head.values > -torch.inf).sum(1) >= num_top
        yes = flat_nonzero(enough)
        if len(yes):
            chosen[head.lines[yes]] = head.tokens[yes, :num_top]
        few.append(head.lines[flat_nonzero(~enough)])
    if len(pending := torch.cat(few)) == 0:
        return chosen
    # Lines with few tokens above -inf, or with NaN, end here, too: sorting works for any line.
    chosen[pending] = all_falling(values[pending])[:, :num_top]
    return chosen


def log_probabilities(logits: Tensor) -> Tensor:
    """float32 log-softmax; the bits of a line depend on that line only."""
    return torch.log_softmax(logits.float(), 1)
