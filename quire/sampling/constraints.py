"""Operations that forbid tokens or shift their logits: grammar masks, allowed tokens, bad words,
min_tokens, bias, and tokens that a model's own files suppress.

Each class holds one feature for all rows. `apply` edits float32 logits in place, only in lines
whose rows asked for it, and only at the tokens concerned; a forbidden token gets -inf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.request import Ints
from quire.sampling.row_lists import Asked, RowOffsets, RowTokens
from quire.sampling.rows import Call, Flags, Lines, Slots
from quire.sampling.scan import flat_nonzero, index
from quire.step import Masks, RowStart
from quire.steps.handles import Handles

_NO_TOKEN = -2
_ANY_TOKEN = -1
_ENDLESS = 1 << 40  # outputs


class GrammarMask:
    """Allows only the tokens of the plan's masks, as soon as these are filled."""

    def __init__(self, handles: Handles) -> None:
        self._handles = handles

    def wanted(self, call: Call) -> Flags:
        if call.masks is None:
            return np.zeros(len(call), np.bool_)
        return np.isin(call.rows, call.masks.rows)

    def copy(self, logits: Tensor, call: Call) -> Tensor:
        """The logits as a new float32 tensor, with -inf for tokens that a line's mask forbids."""
        lines = np.flatnonzero(self.wanted(call))
        if call.masks is None or len(lines) == 0:
            return logits.to(torch.float32, copy=True)
        bits = self._bits(call.masks, call.rows[lines])
        offsets = _offsets(bits, logits.shape[1], logits.device)
        if len(lines) == len(call):
            return torch.add(logits, offsets, out=offsets)
        copied = logits.to(torch.float32, copy=True)
        copied[index(lines, logits.device)] += offsets
        return copied

    def refused(self, call: Call, tokens: Tensor, lines: Lines) -> Lines:
        """The lines of `lines`, which all have a mask, whose mask forbids the token they drew."""
        if call.masks is None or len(lines) == 0:
            return lines
        bits = self._bits(call.masks, call.rows[lines])
        drawn = tokens[index(lines, tokens.device)].cpu().numpy()
        known = drawn < 32 * bits.shape[1]
        words = bits[np.arange(len(lines)), np.where(known, drawn, 0) // 32]
        allowed = known & ((words >> (drawn % 32).astype(np.uint32)) & 1).astype(np.bool_)
        forbidden: Lines = lines[~allowed]
        return forbidden

    def _bits(self, masks: Masks, rows: Lines) -> npt.NDArray[np.uint32]:
        self._handles.wait_for(masks)
        mask_of = {row: number for number, row in enumerate(masks.rows.tolist())}
        return masks.bits[[mask_of[row] for row in rows.tolist()]]


# What is added to the eight tokens of each byte of a mask: 0 where the bit is set, else -inf.
_OF_BYTE = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0.0, -np.inf
).astype(np.float32)


def _offsets(bits: npt.NDArray[np.uint32], vocab_size: int, device: torch.device) -> Tensor:
    """0 for every allowed token of each line, -inf for the others. [lines, vocab_size]"""
    if device.type == "cpu":
        # Adding looked-up bytes is several times faster than choosing token by token.
        offsets = torch.from_numpy(np.take(_OF_BYTE, bits.view(np.uint8), axis=0)).flatten(1)
    else:
        words = torch.from_numpy(bits.view(np.int32)).to(device)
        shifts = torch.arange(32, dtype=torch.int32, device=device)
        allowed = (words[:, :, None] >> shifts).bitwise_and_(1).bool().flatten(1)
        offsets = torch.where(allowed, 0.0, -torch.inf)
    missing = vocab_size - offsets.shape[1]
    if missing > 0:  # a token without a bit is not allowed
        return torch.nn.functional.pad(offsets, (0, missing), value=-torch.inf)
    return offsets[:, :vocab_size]


class _ListedTokens:
    """Base of operations on tokens that rows list."""

    def __init__(self, *, max_rows: int, device: torch.device) -> None:
        self._tokens = RowTokens(max_rows, device)

    def end(self, rows: Ints) -> None:
        self._tokens.end(rows)

    def wanted(self, call: Call) -> Flags:
        return self._tokens.has[call.rows]


class _LongLists(_ListedTokens):
    """Base of operations whose lists may name most of the vocabulary."""

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        super().__init__(max_rows=max_rows, device=device)
        self._offsets = RowOffsets(vocab_size=vocab_size, max_rows=max_rows, device=device)

    def end(self, rows: Ints) -> None:
        super().end(rows)
        self._offsets.end(rows)

    def wanted(self, call: Call) -> Flags:
        return super().wanted(call) | self._offsets.has[call.rows]


class AllowedTokens(_LongLists):
    """allowed_token_ids: all other tokens are forbidden."""

    def start(self, start: RowStart) -> None:
        allowed = start.sampling.allowed_ids
        if allowed is None:
            return
        if self._offsets.takes(allowed):
            self._offsets.set(start.row, allowed, 0.0, -np.inf)
        else:
            self._tokens.set(start.row, allowed)

    def apply(self, logits: Tensor, call: Call) -> None:
        self._offsets.add_to(logits, call.rows)
        entries = self._tokens.at(call.rows)
        if entries is None:
            return
        line, token, _ = entries
        values = logits[line, token]
        logits[index(np.flatnonzero(self._tokens.has[call.rows]), logits.device)] = -torch.inf
        logits[line, token] = values


@dataclass(frozen=True, slots=True)
class _Spelled:
    """Words of several tokens: word [4 5 6] has before [5 4] and last 6."""

    before: npt.NDArray[np.int64]  # [words, longest - 1], newest first
    last: npt.NDArray[np.int64]  # [words]

    @classmethod
    def of(cls, words: Sequence[Ints]) -> _Spelled:
        before = np.full((len(words), max(map(len, words)) - 1), _ANY_TOKEN, np.int64)
        for number, word in enumerate(words):
            before[number, : len(word) - 1] = word[-2::-1]
        return cls(before, np.array([word[-1] for word in words], np.int64))

    def padded(self, width: int) -> npt.NDArray[np.int64]:
        missing = width - self.before.shape[1]
        return np.pad(self.before, ((0, 0), (0, missing)), constant_values=_ANY_TOKEN)


class BadWords:
    """bad_words: forbids the last token of a word where the output ends with its other tokens.

    Word [4 5 6], output .. 4 5: token 6 is forbidden. The prompt does not count.
    """

    def __init__(self, *, max_rows: int, device: torch.device) -> None:
        self._device = device
        self._single = RowTokens(max_rows, device)
        self._slots = Slots(max_rows)
        self._words: dict[int, _Spelled] = {}  # by row: its words of several tokens
        self._newest: tuple[Sequence[Ints], _Spelled] | None = None
        # The last outputs of each slot, newest first: output [.. 4 5] -> [5 4 .. _NO_TOKEN].
        self._tails = torch.empty(0, 0, dtype=torch.int64, device=device)
        self._known = Asked[tuple[Tensor, Tensor, Tensor, Tensor]]()

    def start(self, start: RowStart) -> None:
        words = start.sampling.bad_words
        single = [int(word[0]) for word in words if len(word) == 1]
        if single:
            self._single.set(start.row, single)
        several = [word for word in words if len(word) > 1]
        if not several:
            return
        if self._newest is None or self._newest[0] is not words:  # rows often share their words
            self._newest = words, _Spelled.of(several)
        self._words[start.row] = spelled = self._newest[1]
        self._known.clear()
        slot = self._slots.take(start.row)
        self._reserve(slot + 1, spelled.before.shape[1])
        width = self._tails.shape[1]
        newest = start.output_ids[::-1][:width]
        self._tails[slot] = _NO_TOKEN
        self._tails[slot, : len(newest)] = index(newest, self._device)

    def end(self, rows: Ints) -> None:
        self._single.end(rows)
        self._slots.release(rows)
        for row in rows.tolist():
            if self._words.pop(row, None) is not None:
                self._known.clear()

    def wanted(self, call: Call) -> Flags:
        return self._single.has[call.rows] | (self._slots.of[call.rows] >= 0)

    def apply(self, logits: Tensor, call: Call) -> None:
        entries = self._single.at(call.rows)
        if entries is not None:
            logits[entries[0], entries[1]] = -torch.inf
        lines, _ = self._slots.here(call)
        if len(lines) == 0:
            return
        line, slot, before, last = self._known.of(call.rows, self._patterns)
        if self._device.type == "cpu":
            # Few words match the newest token. Not on a GPU: to pick them the host would wait.
            few = flat_nonzero(before[:, 0] == self._tails[slot, 0])
            line, slot, before, last = line[few], slot[few], before[few], last[few]
        matches = ((before == self._tails[slot]) | (before == _ANY_TOKEN)).all(1)
        # Added, because two words may have the same last token, and only one may match.
        ban = torch.where(matches, -torch.inf, 0.0)
        logits.index_put_((line, last), ban, accumulate=True)

    def advance(self, call: Call, tokens: Tensor) -> None:
        """Remember the token each line drew."""
        lines, slots = self._slots.here(call)
        if len(lines) == 0:
            return
        slot, drawn = index(slots, self._device), tokens[index(lines, self._device)]
        self._tails[slot] = torch.cat([drawn[:, None], self._tails[slot, :-1]], 1)

    def _patterns(self, rows: Lines) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of every word: its line, its slot, its `before` as in _tails, its last token."""
        slots = self._slots.of[rows]
        lines = np.flatnonzero(slots >= 0)
        spelled = [self._words[row] for row in rows[lines].tolist()]
        counts, width = [len(some.last) for some in spelled], self._tails.shape[1]
        columns = (
            np.repeat(lines, counts),
            np.repeat(slots[lines], counts),
            np.concatenate([some.padded(width) for some in spelled]),
            np.concatenate([some.last for some in spelled]),
        )
        line, slot, pattern, last = (index(column, self._device) for column in columns)
        return line, slot, pattern, last

    def _reserve(self, slots: int, width: int) -> None:
        old_slots, old_width = self._tails.shape
        if slots <= old_slots and width <= old_width:
            return
        shape = (max(slots, 2 * old_slots), max(width, old_width))
        # State that outlives a step must be writable outside of inference mode, too.
        with torch.inference_mode(False):
            tails = torch.full(shape, _NO_TOKEN, dtype=torch.int64, device=self._device)
        tails[:old_slots, :old_width] = self._tails
        self._tails = tails


class LogitBias(_LongLists):
    """logit_bias: a number added to a token's logit."""

    def start(self, start: RowStart) -> None:
        tokens, biases = start.sampling.bias_ids, start.sampling.biases
        if self._offsets.takes(tokens):
            self._offsets.set(start.row, tokens, biases, 0.0)
        elif len(tokens):
            self._tokens.set(start.row, tokens, biases)

    def apply(self, logits: Tensor, call: Call) -> None:
        self._offsets.add_to(logits, call.rows)
        entries = self._tokens.at(call.rows)
        if entries is not None:
            line, token, bias = entries
            logits[line, token] += bias


class Banned(_ListedTokens):
    """Tokens forbidden until a row has some number of outputs: `of` gives both."""

    def __init__(
        self, of: Callable[[RowStart], tuple[Ints, int]], *, max_rows: int, device: torch.device
    ) -> None:
        super().__init__(max_rows=max_rows, device=device)
        self._of, self._until = of, np.zeros(max_rows, np.int64)  # the first allowed position

    def start(self, start: RowStart) -> None:
        tokens, num_outputs = self._of(start)
        if len(tokens) and num_outputs > 0:
            self._tokens.set(start.row, tokens)
            self._until[start.row] = len(start.prompt_ids) + num_outputs

    def wanted(self, call: Call) -> Flags:
        listed = super().wanted(call)
        return listed & (call.positions < self._until[call.rows]) if listed.any() else listed

    def apply(self, logits: Tensor, call: Call) -> None:
        lines = np.flatnonzero(self.wanted(call))
        entries = self._tokens.at(call.rows[lines]) if len(lines) else None
        if entries is not None:
            line, token, _ = entries
            logits[index(lines, logits.device)[line], token] = -torch.inf


# min_tokens; and what the model's own files suppress: always, and as an answer's first token.
BANS: tuple[Callable[[RowStart], tuple[Ints, int]], ...] = (
    lambda start: (start.stop_ids, start.sampling.min_tokens),
    lambda start: (start.sampling.never_ids, _ENDLESS),
    lambda start: (start.sampling.not_first_ids, 1),
)
