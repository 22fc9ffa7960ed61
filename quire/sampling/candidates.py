"""The likeliest tokens of rows that are beams; the host chooses among them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quire.request import Ints
from quire.sampling.constraints import GrammarMask
from quire.sampling.logprobs import likeliest, log_probabilities
from quire.sampling.rows import Call
from quire.step import Masks
from quire.steps.handles import Handles

# Scores processed at a time, which bounds the memory needed beside the logits.
_PIECE = 2**22


def candidates(
    logits: Tensor, rows: Ints, masks: Masks | None, count: int, handles: Handles
) -> tuple[Tensor, Tensor]:
    """(tokens, logprobs) [lines, count], best first: tokens of line i that rows[i] may draw.

    The logprobs are of the raw logits: forbidden tokens are left out, but counted in the sum, as
    in Transformers. -inf where fewer than `count` tokens are allowed. With a vocabulary smaller
    than `count` there are as many columns as tokens.
    """
    tokens, logprobs = [], []
    step = max(1, _PIECE // logits.shape[1])
    for begin in range(0, len(logits), step):
        values = log_probabilities(logits[begin : begin + step])
        if masks is not None:
            some = rows[begin : begin + step].astype(np.int64)
            call = Call(some, np.zeros(len(some), np.int64), masks)
            values = GrammarMask(handles).copy(values, call)
        if values.is_cuda:
            best = values.topk(min(count, values.shape[1]))
            tokens.append(best.indices)
            logprobs.append(best.values)
        else:
            tokens.append(likeliest(values, count))
            logprobs.append(values.gather(1, tokens[-1]))
    return torch.cat(tokens), torch.cat(logprobs)
