"""Sampler: logits in, one token per line out. Knows rows and numbers, not text or sequences.

The order of operations:
    raw logprobs
    float32
    grammar mask -> allowed_token_ids -> bad_words -> min_tokens -> logit_bias
    repetition, frequency, presence penalties
    greedy: the likeliest token
    otherwise: temperature -> min_p -> top_k -> top_p -> Gumbel noise -> the largest

A line's token and logprobs are a function of its logits, its row's start and its history,
never of the other lines in the call. Work is done only for lines that asked for it: a call
of greedy lines costs one argmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from quire.request import Ints
from quire.sampling.constraints import AllowedTokens, BadWords, GrammarMask, LogitBias, MinTokens
from quire.sampling.draw import draw_among, draw_from_all
from quire.sampling.logprobs import log_probabilities, token_logprobs
from quire.sampling.penalties import Penalties
from quire.sampling.rows import Call, Flags, Lines, SamplingRows
from quire.sampling.scan import best, index
from quire.sampling.truncation import mask_out, truncate
from quire.step import Masks, RowStart, TokenLogprobs

# Scores worked on at a time; bounds the memory beside the logits.
_PIECE = 2**22


@dataclass(frozen=True, slots=True)
class Sampled:
    """tokens [lines], int64 on the device; what the lines that asked get; lines that failed.

    A line fails when its logits have NaN or +inf or are all -inf, or when its constraints
    leave no token. Its token is 0 and means nothing.
    """

    tokens: Tensor
    logprobs: dict[int, TokenLogprobs]
    failed: tuple[int, ...]


class Operation(Protocol):
    """One kind of edit of the logits, for the rows that want it."""

    def start(self, start: RowStart) -> None: ...

    def end(self, rows: Ints) -> None: ...

    def wanted(self, call: Call) -> Flags: ...

    def apply(self, logits: Tensor, call: Call) -> None: ...


class Sampler:
    """Draws tokens for device rows."""

    def __init__(
        self, *, vocab_size: int, max_rows: int, device: torch.device, logprobs_mode: str
    ) -> None:
        self._vocab_size, self._device = vocab_size, device
        self._from_raw = logprobs_mode.startswith("raw_")
        self._as_logits = logprobs_mode.endswith("_logits")
        self._rows = SamplingRows(max_rows=max_rows, vocab_size=vocab_size, device=device)
        bad_words = BadWords(max_rows=max_rows, device=device)
        penalties = Penalties(max_rows=max_rows, device=device)
        # In this order, and before greedy and temperature.
        self._operations: tuple[Operation, ...] = (
            GrammarMask(),
            AllowedTokens(max_rows=max_rows, device=device),
            bad_words,
            MinTokens(max_rows=max_rows, device=device),
            LogitBias(max_rows=max_rows, device=device),
            penalties,
        )
        self._remember = (bad_words, penalties)  # what depends on the tokens drawn so far

    def start(self, start: RowStart) -> None:
        """A sequence takes the row, with the history it brings along."""
        self.end(np.asarray([start.row], np.int32))
        self._rows.start(start)
        for operation in self._operations:
            operation.start(start)

    def end(self, rows: Ints) -> None:
        """The rows are free again."""
        self._rows.end(rows)
        for operation in self._operations:
            operation.end(rows)

    @torch.no_grad()
    def sample(self, logits: Tensor, rows: Ints, positions: Ints, masks: Masks | None) -> Sampled:
        """The next token of rows[i] from logits[i]; it will stand at positions[i]."""
        call = Call(rows.astype(np.int64), positions.astype(np.int64), masks)
        logits = logits[:, : self._vocab_size]
        tokens, top = best(logits)
        failed = _not_finite(top)
        edited = np.zeros(len(call), np.bool_)
        for operation in self._operations:
            edited |= operation.wanted(call)
        asks = self._rows.asks_logprobs[call.rows]
        work = edited | self._rows.is_random[call.rows]
        if not self._from_raw:
            work = work | asks
        logprobs: dict[int, TokenLogprobs] = {}
        for lines in self._pieces(np.flatnonzero(work & ~failed)):
            some = self._lines(logits, lines)
            if edited[lines].any():
                some = some.to(torch.float32, copy=True)
                self._edit(some, tokens, top, call, lines)
            some, failed[lines] = self._draw(some, tokens, top, call, lines)
            if not self._from_raw:
                self._add_logprobs(logprobs, some, tokens, call, lines, failed)
        if self._from_raw:
            for lines in self._pieces(np.flatnonzero(asks & ~failed)):
                some = self._lines(logits, lines)
                self._add_logprobs(logprobs, some, tokens, call, lines, failed)
        tokens[index(np.flatnonzero(failed), self._device)] = 0
        for memory in self._remember:
            memory.advance(call, tokens)
        return Sampled(tokens, logprobs, tuple(np.flatnonzero(failed).tolist()))

    @torch.no_grad()
    def score(self, logits: Tensor, targets: Ints, row: int) -> list[TokenLogprobs]:
        """Logprobs of given tokens: targets[i] under logits[i], with the row's prompt_logprobs."""
        num_top = self._rows.starts[row].params.prompt_logprobs or 0
        scored: list[TokenLogprobs] = []
        for lines in self._pieces(np.arange(len(targets))):
            values = self._values(logits[index(lines, self._device), : self._vocab_size])
            scored += token_logprobs(values, index(targets[lines], self._device), num_top)
        return scored

    def _edit(self, scores: Tensor, tokens: Tensor, top: Tensor, call: Call, lines: Lines) -> None:
        """Apply the operations to the scores of some lines, and find their best tokens again."""
        part, at = call.take(lines), index(lines, self._device)
        for operation in self._operations:
            operation.apply(scores, part)
        tokens[at], top[at] = best(scores)

    def _draw(
        self, scores: Tensor, tokens: Tensor, top: Tensor, call: Call, lines: Lines
    ) -> tuple[Tensor, Flags]:
        """Put what some lines draw into `tokens`; what it was drawn from, and which lines failed.

        `tokens` and `top` hold each line's best token, which stands where the row is greedy.
        """
        at, part = index(lines, self._device), call.take(lines)
        drawn, best_score = tokens[at], top[at]
        is_random = self._rows.is_random[part.rows]
        if is_random.any():
            temperature = self._rows.temperature(part)  # 1 for greedy rows
            scores = scores.float() / temperature[:, None]
            best_score = best_score / temperature
        failed = _not_finite(best_score)
        is_random &= ~failed
        is_truncated = self._rows.is_truncated[part.rows]
        for draw, chosen in (
            (self._draw_truncated, is_random & is_truncated),
            (self._draw_whole, is_random & ~is_truncated),
        ):
            if chosen.any():
                draw(scores, drawn, best_score, part, np.flatnonzero(chosen))
        tokens[at] = drawn
        return scores, failed

    def _draw_truncated(
        self, scores: Tensor, drawn: Tensor, top: Tensor, part: Call, lines: Lines
    ) -> None:
        at, some = index(lines, self._device), part.take(lines)
        mine = scores if len(lines) == len(part) else scores[at]
        keys = self._rows.noise_keys(some)
        kept = truncate(mine, top[at], self._rows.limits(some))
        for group in kept:
            chosen = draw_among(group.values, group.tokens, group.num_kept, keys.take(group.lines))
            drawn[at[group.lines]] = chosen
        if not self._from_raw:
            scores[at] = mask_out(mine, kept)

    def _draw_whole(
        self, scores: Tensor, drawn: Tensor, top: Tensor, part: Call, lines: Lines
    ) -> None:
        at = index(lines, self._device)
        mine = scores if len(lines) == len(part) else scores[at]
        keys = self._rows.noise_keys(part.take(lines))
        drawn[at] = draw_from_all(mine, top[at], drawn[at], keys)

    def _add_logprobs(
        self,
        logprobs: dict[int, TokenLogprobs],
        scores: Tensor,
        tokens: Tensor,
        call: Call,
        lines: Lines,
        failed: Flags,
    ) -> None:
        """Logprobs of those of `lines`, whose scores these are, that asked and did not fail."""
        groups: dict[tuple[int, tuple[int, ...] | None], list[int]] = {}
        for number, line in enumerate(lines.tolist()):
            row = int(call.rows[line])
            if failed[line] or not self._rows.asks_logprobs[row]:
                continue
            params = self._rows.starts[row].params
            ids = tuple(params.logprob_token_ids) if params.logprob_token_ids else None
            groups.setdefault((params.logprobs or 0, ids), []).append(number)
        for (num_top, ids), numbers in groups.items():
            whole = len(numbers) == len(lines)
            values = self._values(scores if whole else scores[index(numbers, self._device)])
            theirs = lines[numbers]
            entries = token_logprobs(values, tokens[index(theirs, self._device)], num_top, ids)
            logprobs.update(zip(theirs.tolist(), entries, strict=True))

    def _lines(self, logits: Tensor, lines: Lines) -> Tensor:
        """Some lines of the logits: not always a copy, so not to be written to."""
        return logits if len(lines) == len(logits) else logits[index(lines, self._device)]

    def _values(self, scores: Tensor) -> Tensor:
        return scores.float() if self._as_logits else log_probabilities(scores)

    def _pieces(self, lines: Lines) -> Iterator[Lines]:
        step = max(1, _PIECE // self._vocab_size)
        for begin in range(0, len(lines), step):
            yield lines[begin : begin + step]


def _not_finite(top: Tensor) -> Flags:
    failed: Flags = ~torch.isfinite(top).cpu().numpy()
    return failed
