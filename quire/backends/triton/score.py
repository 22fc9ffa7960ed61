"""Logprobs of drawn tokens and of the likeliest ones, without the host.

Values are those of the raw logits. Ranks count strictly larger logits, and equal logits are ordered
by token id, as quire.sampling.logprobs defines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.backends.triton.sample import SampleBuffers, limits_constants
from quire.backends.triton.score_kernels import score_drawn

if TYPE_CHECKING:
    from torch import Tensor


def score(
    logits: Tensor,
    rows: Tensor,
    tokens: Tensor,
    failed: Tensor,
    num_logprobs: Tensor,
    out: Tensor,
    step: Tensor,
    room: SampleBuffers,
    *,
    as_logits: bool,
) -> None:
    """out[step[0], i] gets the entry of tokens[i], where row rows[i] asked for one.

    num_logprobs int32 [rows], -1 = did not ask; out int32 [steps, lines, 2 + 2 k]: the bits of the
    logprob, the rank, then id and bits of the logprob of each likeliest token. If a line failed, or
    its row did not ask, nothing is written. With `as_logits` logits instead of logprobs.
    """
    score_drawn[(logits.shape[0],)](
        *(logits, rows, tokens, failed, num_logprobs, out, step),
        *(room.few, room.few_ids, room.num_few, logits.stride(0), room.vocab_size),
        *(out.stride(1), out.stride(0)),
        AS_LOGITS=as_logits,
        **limits_constants(logits.dtype),
    )
