"""Sampler: logits in, one token per line out. Knows rows and numbers, not text or sequences.

The order of operations:
    raw logprobs
    float32
    grammar mask -> allowed_token_ids -> bad_words -> logit_bias -> min_tokens, suppressed tokens
    repetition, frequency, presence penalties
    greedy: the likeliest token
    otherwise: temperature -> min_p -> top_k -> top_p -> Gumbel noise -> the largest

Logits processors of the batch come before the penalties, or after the temperature if they never
change the likeliest token; those of single rows come before everything (holding.py).

A line's token and logprobs depend on its logits, its row's start and its history, never on the
other lines of the call. Work is done only for lines that need it: a call of greedy lines costs one
argmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from quire.request import Ints
from quire.sampling.batch_processors import BatchProcessors
from quire.sampling.constraints import (
    BANS,
    AllowedTokens,
    BadWords,
    Banned,
    GrammarMask,
    LogitBias,
)
from quire.sampling.draw import draw_from_all
from quire.sampling.logprobs import log_probabilities, token_logprobs
from quire.sampling.penalties import Penalties
from quire.sampling.rows import Call, Flags, Lines, SamplingRows
from quire.sampling.sampled import DrawLines, Sampled, left_no_token
from quire.sampling.scan import best, index
from quire.sampling.truncation import truncate
from quire.step import DrawnScores, Masks, RowStart
from quire.steps.handles import Handles

# Scores processed at a time, which bounds the memory needed beside the logits.
_PIECE = 2**22


class Operation(Protocol):
    """One kind of edit of the logits, for the rows that want it."""

    def start(self, start: RowStart) -> None: ...

    def end(self, rows: Ints) -> None: ...

    def wanted(self, call: Call) -> Flags: ...

    def apply(self, logits: Tensor, call: Call) -> None: ...


class Sampler:
    """Draws tokens for device rows."""

    def __init__(
        self,
        *,
        vocab_size: int,
        max_rows: int,
        device: torch.device,
        logprobs_mode: str,
        batch: BatchProcessors | None = None,
        handles: Handles | None = None,
    ) -> None:
        """`handles` wait for masks that have a ticket."""
        self._vocab_size, self._device = vocab_size, device
        self._from_raw = logprobs_mode.startswith("raw_")
        self._as_logits = logprobs_mode.endswith("_logits")
        self._rows = SamplingRows(max_rows=max_rows, vocab_size=vocab_size, device=device)
        bad_words = BadWords(max_rows=max_rows, device=device)
        penalties = Penalties(max_rows=max_rows, device=device)
        self._batch = batch or BatchProcessors(())
        self._mask = GrammarMask(handles or Handles())
        # In this order, after the mask, and before greedy and temperature.
        self._operations: tuple[Operation, ...] = (
            AllowedTokens(vocab_size=vocab_size, max_rows=max_rows, device=device),
            bad_words,
            LogitBias(vocab_size=vocab_size, max_rows=max_rows, device=device),
            *(Banned(of, max_rows=max_rows, device=device) for of in BANS),
            self._batch,
            penalties,
        )
        # Operations that depend on the tokens drawn so far.
        self._remember = (bad_words, penalties, self._batch)
        self._kernels: DrawLines | None = None

    def draw_by(self, kernels: DrawLines) -> None:
        """Draw with these kernels from now on. They draw the same tokens; with torch a draw takes a
        hundred launches and a dozen waits. Not used if logprobs are of processed logits."""
        if self._from_raw and not self._batch.has_invariant:
            self._kernels = kernels

    def start(self, start: RowStart) -> None:
        """A sequence takes the row, with the tokens it has so far."""
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
    def sample(
        self,
        logits: Tensor,
        rows: Ints,
        positions: Ints,
        masks: Masks | None,
        *,
        raw: Tensor | None = None,
    ) -> Sampled:
        """The next token of rows[i] from logits[i]; it will stand at positions[i].

        `raw`: the model's own logits, if `logits` were processed already.
        """
        call = Call(rows.astype(np.int64), positions.astype(np.int64), masks)
        logits = logits[:, : self._vocab_size]
        edited = np.zeros(len(call), np.bool_)
        for operation in self._operations:
            edited |= operation.wanted(call)
        masked = self._mask.wanted(call)
        if self._kernels is not None:
            return self._sample_by(self._kernels, logits, call, edited | masked, raw)
        tried = masked & ~edited & self._may_try(call)
        edited |= masked & ~tried
        tokens, top = best(logits) if not edited.all() else _nothing(len(call), self._device)
        failed = _not_finite(top)
        asks = self._rows.asks_logprobs[call.rows]
        work = edited | self._rows.is_random[call.rows]
        if not self._from_raw:
            work = work | asks
        logprobs: list[DrawnScores] = []
        for lines in self._pieces(np.flatnonzero(work & ~failed)):
            some = self._lines(logits, lines)
            if edited[lines].any():
                some = self._edited(some, tokens, top, call, lines)
            some, failed[lines] = self._draw(some, tokens, top, call, lines)
            if not self._from_raw:
                self._add_logprobs(logprobs, some, tokens, call, lines, failed)
        for lines in self._pieces(
            self._mask.refused(call, tokens, np.flatnonzero(tried & ~failed))
        ):
            some = self._edited(self._lines(logits, lines), tokens, top, call, lines)
            _, failed[lines] = self._draw(some, tokens, top, call, lines)
        tokens[index(np.flatnonzero(failed), self._device)] = 0
        raw = logits if raw is None else raw
        logprobs += self._raw_logprobs(raw, tokens, call, failed)
        return self._sampled(tokens, tokens, logprobs, call, failed, raw)

    def _sample_by(
        self, draw: DrawLines, logits: Tensor, call: Call, edited: Flags, raw: Tensor | None
    ) -> Sampled:
        """The same as `sample`, with kernels, piece by piece."""
        places = torch.from_numpy(np.stack([call.rows, call.positions]).astype(np.int32))
        if self._device.type == "cuda":  # pinned, so that the copy does not block
            places = places.pin_memory().to(self._device, non_blocking=True)
        (rows, next_at), parts = places.unbind(), list[Tensor]()
        for lines in self._pieces(np.arange(len(call))):
            scores, at = self._lines(logits, lines), slice(int(lines[0]), int(lines[-1]) + 1)
            if edited[lines].any():
                part = call.take(lines)
                scores = self._mask.copy(scores, part)
                for operation in self._operations:
                    operation.apply(scores, part)
            truncated = bool(self._rows.is_truncated[call.rows[lines]].any())
            tokens, bad = draw(scores, rows[at], next_at[at], truncated=truncated)
            parts.append(torch.stack([tokens.masked_fill(bad != 0, 0), bad.to(torch.int64)]))
        drawn = torch.cat(parts, dim=1)
        home = drawn.cpu()
        failed: Flags = home[1].numpy() > 0
        raw = logits if raw is None else raw
        logprobs = self._raw_logprobs(raw, drawn[0], call, failed)
        return self._sampled(home[0], drawn[0], logprobs, call, failed, raw)

    def _raw_logprobs(
        self, raw: Tensor, tokens: Tensor, call: Call, failed: Flags
    ) -> list[DrawnScores]:
        """Logprobs of lines that asked, if they are taken from the model's own logits."""
        logprobs: list[DrawnScores] = []
        asks = self._rows.asks_logprobs[call.rows] & ~failed & self._from_raw
        for lines in self._pieces(np.flatnonzero(asks)):
            self._add_logprobs(logprobs, self._lines(raw, lines), tokens, call, lines, failed)
        return logprobs

    def _sampled(
        self,
        tokens: Tensor,
        on_device: Tensor,
        logprobs: list[DrawnScores],
        call: Call,
        failed: Flags,
        raw: Tensor,
    ) -> Sampled:
        """The result; operations that depend on drawn tokens get them."""
        for memory in self._remember:
            memory.advance(call, on_device)
        lines, why = tuple(np.flatnonzero(failed).tolist()), self._batch.why(call, failed)
        none = left_no_token(lines, raw[:, : self._vocab_size])
        return Sampled(tokens, tuple(logprobs), lines, {}, why, none)

    def keeps_raw(self, row: int) -> bool:
        """Whether the row's logprobs are taken from the model's own logits."""
        return self._from_raw and bool(self._rows.asks_logprobs[row])

    def _may_try(self, call: Call) -> Flags:
        """Which lines may draw from all tokens first, and from the allowed ones only if that fails.

        The best of all tokens, if it is allowed, is the best of the allowed ones. Noise belongs to
        a token, so this holds for random draws, too, but not where top_k and the like cut tokens.
        """
        may = ~self._rows.is_truncated[call.rows] & (not self._batch)
        return may if self._from_raw else may & ~self._rows.asks_logprobs[call.rows]

    def _edited(
        self, logits: Tensor, tokens: Tensor, top: Tensor, call: Call, lines: Lines
    ) -> Tensor:
        """The logits of some lines after all operations; updates their best tokens."""
        part, at = call.take(lines), index(lines, self._device)
        scores = self._mask.copy(logits, part)
        for operation in self._operations:
            operation.apply(scores, part)
        tokens[at], top[at] = best(scores)
        return scores

    def _draw(
        self, scores: Tensor, tokens: Tensor, top: Tensor, call: Call, lines: Lines
    ) -> tuple[Tensor, Flags]:
        """Write draws of some lines into `tokens`; returns the scores used, and which lines failed.

        `tokens` and `top` hold each line's best token, which a greedy row keeps.
        """
        at, part = index(lines, self._device), call.take(lines)
        drawn, best_score = tokens[at], top[at]
        is_random = self._rows.is_random[part.rows]
        if is_random.any():
            temperature = self._rows.temperature(part)  # 1 for greedy rows
            scores = scores.float()
            if not self._may_stay(temperature):
                scores, best_score = scores / temperature[:, None], best_score / temperature
            if self._batch.has_invariant:
                self._batch.apply_invariant(scores, part)
                chosen = torch.from_numpy(is_random).to(self._device)
                found, best_found = best(scores)
                drawn = torch.where(chosen, found, drawn)
                best_score = torch.where(chosen, best_found, best_score)
        failed = _not_finite(best_score)
        is_random &= ~failed
        is_truncated = self._rows.is_truncated[part.rows]
        for draw, whose in (
            (self._draw_truncated, is_random & is_truncated),
            (self._draw_whole, is_random & ~is_truncated),
        ):
            if whose.any():
                draw(scores, drawn, best_score, part, np.flatnonzero(whose))
        tokens[at] = drawn
        return scores, failed

    def _may_stay(self, temperature: Tensor) -> bool:
        """Whether scores need no copy: at temperature 1 they do not change, if nothing else writes
        to them. Only checked on a CPU, where reading the temperatures does not wait."""
        unwritten = self._from_raw and not self._batch.has_invariant
        return unwritten and temperature.device.type == "cpu" and bool((temperature == 1).all())

    def _draw_truncated(
        self, scores: Tensor, drawn: Tensor, top: Tensor, part: Call, lines: Lines
    ) -> None:
        at, some = index(lines, self._device), part.take(lines)
        mine = scores if len(lines) == len(part) else scores[at]
        keys = self._rows.noise_keys(some)
        border = truncate(mine, top[at], self._rows.limits(some))
        drawn[at] = draw_from_all(mine, top[at], drawn[at], keys, border)
        if not self._from_raw:
            scores[at] = border.masked(mine)

    def _draw_whole(
        self, scores: Tensor, drawn: Tensor, top: Tensor, part: Call, lines: Lines
    ) -> None:
        at = index(lines, self._device)
        mine = scores if len(lines) == len(part) else scores[at]
        keys = self._rows.noise_keys(part.take(lines))
        drawn[at] = draw_from_all(mine, top[at], drawn[at], keys)

    def _add_logprobs(
        self,
        logprobs: list[DrawnScores],
        scores: Tensor,
        tokens: Tensor,
        call: Call,
        lines: Lines,
        failed: Flags,
    ) -> None:
        """Add logprobs of lines that asked and did not fail; `scores` are those of `lines`."""
        groups: dict[tuple[int, bytes], list[int]] = {}
        for number, line in enumerate(lines.tolist()):
            row = int(call.rows[line])
            if failed[line] or not self._rows.asks_logprobs[row]:
                continue
            sampling = self._rows.starts[row].sampling
            named = b"" if sampling.logprob_ids is None else sampling.logprob_ids.tobytes()
            groups.setdefault((sampling.num_logprobs or 0, named), []).append(number)
        for (num_top, named), numbers in groups.items():
            whole = len(numbers) == len(lines)
            values = self._values(scores if whole else scores[index(numbers, self._device)])
            theirs = lines[numbers]
            ids = np.frombuffer(named, np.int32) if named else None
            found = token_logprobs(values, tokens[index(theirs, self._device)], num_top, ids)
            logprobs.append(DrawnScores(theirs.astype(np.int32), found))

    def _lines(self, logits: Tensor, lines: Lines) -> Tensor:
        """Some lines of the logits, maybe as a view: read-only."""
        first, last = int(lines[0]), int(lines[-1]) + 1
        if last - first == len(lines):  # in ascending order, so without a gap
            return logits[first:last]
        return logits[index(lines, self._device)]

    def _values(self, scores: Tensor) -> Tensor:
        return scores.float() if self._as_logits else log_probabilities(scores)

    def _pieces(self, lines: Lines) -> Iterator[Lines]:
        step = max(1, _PIECE // self._vocab_size)
        if self._batch:
            step = max(1, len(lines))  # batch processors get all lines at once
        for begin in range(0, len(lines), step):
            yield lines[begin : begin + step]


def _nothing(num_lines: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Placeholders for best tokens and their scores."""
    tokens = torch.zeros(num_lines, dtype=torch.int64, device=device)
    return tokens, torch.zeros(num_lines, device=device)


def _not_finite(top: Tensor) -> Flags:
    return np.asarray(~torch.isfinite(top).cpu().numpy())
