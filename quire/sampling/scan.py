"""Finding the few tokens that matter in [lines, vocab] scores.

All results for a line depend on that line only, bit for bit: there are only comparisons, maxima and
sorts of distinct numbers here, never a floating-point sum. On a CPU the best token is found in C,
and numpy does the other scanning, because its compare, nonzero and sort (and its argmax, where
there is no compiler) are several times faster than torch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.backends.cpu.native.noise import best_of_lines, can_search

# A line is padded to the longest of its group, so lines are grouped by similar length.
_WIDTHS = (64, 256, 1024, 4096)
# Elements converted to float32 at a time.
_PIECE = 2**22
_LOW = 0xFFFFFFFF
_ALL_BUT_SIGN = 0x7FFFFFFF
LOWEST = torch.finfo(torch.float32).min
_BLOCK, _BLOCKS_A_TOKEN = 32, 4
_PADDING = 0x7F800000 << 32  # the key of -inf and token 0


@dataclass(frozen=True, slots=True)
class Head:
    """The likeliest tokens of some lines, likeliest first, the lowest token id among equals.

    scores [1 2 5 4 4], bound 3 -> values [5 4 4], tokens [2 3 4]; shorter lines of the group
    are padded with -inf.
    """

    lines: Tensor  # [n] which lines of the scores
    bounds: Tensor  # [n] the least score of a token in the head
    values: Tensor  # [n, width]
    tokens: Tensor  # [n, width]

    @property
    def complete(self) -> Tensor:
        """Whether every token above -inf is in the head."""
        return self.bounds <= LOWEST


def best(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Each line's best token (the lowest among equals) and its score, float32.

    NaN counts as best, so a line is sound exactly when its best score is finite.
    """
    if scores.device.type != "cpu":
        values, tokens = scores.max(1)
        return tokens, values.float()
    if can_search(scores):
        return best_of_lines(scores)
    tokens = torch.empty(len(scores), dtype=torch.int64)
    step = max(1, _PIECE // max(1, scores.shape[1]))
    for begin in range(0, len(scores), step):
        piece = scores[begin : begin + step].float().numpy()
        tokens[begin : begin + step] = torch.from_numpy(piece.argmax(1))
    return tokens, scores.gather(1, tokens[:, None])[:, 0].float()


def flat_nonzero(mask: Tensor) -> Tensor:
    """Where the flattened mask is true."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.flatten().nonzero()[:, 0]


def flat_at_least(scores: Tensor, bound: Tensor) -> Tensor:
    """Where the flattened scores reach the bound, which broadcasts against them."""
    if scores.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(scores.numpy() >= bound.numpy()))
    return flat_nonzero(scores >= bound)


def count_larger(scores: Tensor, bound: Tensor) -> Tensor:
    """How many scores of each line are above its bound [lines, 1]."""
    if scores.device.type == "cpu":
        return torch.from_numpy(np.count_nonzero(scores.numpy() > bound.numpy(), axis=1))
    return (scores > bound).sum(1)


def index(numbers: npt.NDArray[np.integer] | list[int], device: torch.device) -> Tensor:
    """Host integers as a tensor to index with."""
    return torch.from_numpy(np.asarray(numbers, np.int64)).to(device)


def bounds_of(scores: Tensor, counts: Tensor) -> Tensor:
    """For each line a score that at least counts[i] of its tokens reach, seldom many more; -inf if
    the line has fewer blocks than that.

    It is the counts[i]-th largest of the maxima of blocks, each of which is a token.
    """
    most, vocab = int(counts.max()), scores.shape[1]
    size = max(1, min(_BLOCK, vocab // (_BLOCKS_A_TOKEN * most)))
    maxima = scores.unfold(1, size, size).amax(2)
    largest = maxima.topk(min(most, maxima.shape[1])).values
    found = largest.gather(1, counts.clamp(max=largest.shape[1])[:, None] - 1)[:, 0]
    return found.masked_fill_(counts > largest.shape[1], -torch.inf)


def heads(scores: Tensor, bounds: Tensor, lines: Tensor) -> Iterator[Head]:
    """The tokens of `lines` (ascending) that reach the bound of their line, in groups of lines with
    similar numbers of tokens."""
    vocab = scores.shape[1]
    inside = scores if len(lines) == len(scores) else scores[lines]
    bound = bounds.clamp(min=LOWEST)  # -inf >= -inf holds, and tokens at -inf are never wanted
    flat = flat_at_least(inside, bound[:, None])
    begins = torch.arange(len(lines) + 1, device=flat.device) * vocab
    counts = torch.searchsorted(flat, begins).diff()
    tokens = flat - begins[:-1].repeat_interleave(counts)
    keys = _keys(inside.flatten()[flat], tokens)
    low = -1  # so that lines without any token (all NaN) are in the first group
    for width in (*_WIDTHS, vocab):
        is_member = (counts > low) & (counts <= width)
        members, low = flat_nonzero(is_member), width
        if len(members) == 0:
            continue
        alone = len(members) == len(lines)
        mine = keys if alone else keys[flat_nonzero(is_member.repeat_interleave(counts))]
        yield Head(lines[members], bound[members], *_falling(mine, counts[members]))


def all_falling(values: Tensor) -> Tensor:
    """Every token of each line [lines, vocab], likeliest first, the lowest id among equals."""
    if values.device.type != "cpu":
        return values.sort(dim=1, descending=True, stable=True).indices
    keys = _keys(values.float(), torch.arange(values.shape[1]))
    keys.numpy().sort(axis=1)
    return keys & _LOW


def _keys(values: Tensor, tokens: Tensor) -> Tensor:
    """A 64-bit key per token: it rises as the value falls, and among equal values with the id.

    No two keys are equal, and a CPU sorts plain integers many times faster than pairs.
    """
    bits = (values + 0.0).view(torch.int32)  # + 0.0: minus zero is zero
    return (~_flip(bits)).long() << 32 | tokens


def _falling(keys: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Values and tokens [lines, longest], best first; line i has the next counts[i] keys."""
    width = max(1, int(counts.max()))
    padded = keys.new_full((len(counts), width), _PADDING)
    padded.masked_scatter_(torch.arange(width, device=keys.device) < counts[:, None], keys)
    if padded.device.type == "cpu":
        padded.numpy().sort(axis=1)
    else:
        padded = padded.sort(dim=1).values
    return _flip((~(padded >> 32)).int()).view(torch.float32), padded & _LOW


def _flip(numbers: Tensor) -> Tensor:
    """Turns the bits of float32 into int32 in the order of the values, and back again."""
    return numbers ^ ((numbers >> 31) & _ALL_BUT_SIGN)
