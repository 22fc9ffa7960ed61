"""Runner: StepPlan -> Batch -> model -> sampler -> StepResult.

A plan's changes come first; a pass then computes the KV of its tokens, and logits and a token for
each row that draws. With `repeat`, decode rows go on from the tokens that they just drew. The
sampler knows how rows sample; the runner does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from quire.executor.adapters import RowAdapters
from quire.executor.cpu.rows import DeviceRows
from quire.executor.guessed import Draws, Lines, most_drawn, part_of
from quire.executor.hidden import hidden_states
from quire.executor.memory import caches_by_layer
from quire.executor.pass_media import PassMedia
from quire.executor.scoring import CPU_BYTES, Scorer, num_lines_of
from quire.executor.shelf import Shelf
from quire.layers.batch import Batch, make_batch
from quire.layers.kv_groups import BlockTables, KVGroup
from quire.models.model import Model
from quire.request import Ints
from quire.sampling.candidates import candidates
from quire.sampling.holding import Holding
from quire.sampling.sampled import Sampled, joined_blocks
from quire.step import (
    Candidates,
    DrawnScores,
    Floats,
    PrefixGroup,
    Scores,
    Slice,
    StepPlan,
    StepResult,
)
from quire.steps.handles import Handles


class Runner:
    """Runs plans one after the other on one model and one KV cache."""

    def __init__(
        self,
        model: Model,
        cache: Tensor,
        rows: DeviceRows,
        sampler: Holding,
        block_size: int,
        *,
        handles: Handles,
        groups: Sequence[KVGroup] = (),
        scores_as_logits: bool = False,
        shelf: Shelf | None = None,
        adapters: RowAdapters | None = None,
    ) -> None:
        """`groups`: of layers, whose blocks `cache` holds; empty: one of all layers. If some have a
        window, the last block stays zeros and belongs to no row: kernels that read whole tiles of
        keys find it in place of blocks behind the window. `scores_as_logits`: prompt logprobs are
        plain logits. `adapters`: the slots of LoRA adapters, None without."""
        self.model, self.cache, self.rows, self.sampler = model, cache, rows, sampler
        groups = groups or (KVGroup(tuple(range(len(cache)))),)
        model.use_groups(groups)
        self._seen = BlockTables.of(groups)
        self._layer_caches = caches_by_layer(cache, groups)
        self._zeros = cache.shape[2] - 1
        if any(window is not None for window in self._seen.windows):
            cache[:, :, self._zeros] = 0
        self.block_size, self.handles, self.adapters = block_size, handles, adapters
        self.media = PassMedia(shelf, len(rows.last_tokens))
        num_lines = num_lines_of(CPU_BYTES, model.head.out_features, torch.float32)
        # Bound to the model, not to self: a reference cycle would keep both, and the KV cache, in
        # memory until a full garbage collection.
        logits = partial(_logits, model, adapters)
        self.scorer = Scorer(logits, num_lines=num_lines, as_logits=scores_as_logits)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        unencoded = self._change(plan)
        sampled_rows = plan.sampled_rows()
        last = len(sampled_rows) - len(plan.released)
        num_drawn = last - len(plan.decode)
        made = _Made(len(sampled_rows), max(plan.repeat, most_drawn(plan.prefill)))
        if len(plan.released):
            sampled = self.sampler.sample_held(plan.released, plan.masks)
            self._keep(plan.released, sampled, made, np.arange(last, len(sampled_rows)))
        # Entries of the result that draw in this pass: in the first pass all, then the decode rows
        # that have not stopped.
        entries, paced = np.arange(num_drawn, last), np.concatenate([plan.single, plan.tried])
        for k in range(plan.repeat):
            live = self.rows.is_live(sampled_rows[entries]).cpu().numpy()
            if k > 0 and len(paced):
                live &= ~np.isin(sampled_rows[entries], paced)
            entries = entries[live]
            prefill = plan.prefill if k == 0 else ()
            if not len(entries) and not prefill:
                break
            rows = sampled_rows[entries]
            positions = plan.decode.positions[entries - num_drawn] + np.int32(k)
            batch, hidden = self._compute(prefill, rows, positions, plan.groups)
            if k == 0:
                starts = batch.query_starts.cpu().numpy()
                made.scored = self.scorer.score(plan.prefill, starts, hidden)
                made.hidden = hidden_states(plan.prefill, starts, hidden)
            draws = Draws.of(prefill, entries, positions)
            if len(draws):
                self._draw(batch, hidden, sampled_rows[draws.entries], plan, made, draws)
        return made.result(unencoded)

    @torch.inference_mode()
    def end_rows(self, rows: Ints) -> None:
        """End these rows: other sequences may have them."""
        self.rows.end(rows)
        self.sampler.end(rows)
        if self.adapters is not None:
            self.adapters.end(rows)

    def _change(self, plan: StepPlan) -> dict[int, str]:
        """Apply all changes of a plan that come before its pass, in the order that StepPlan
        defines. Returns which of its media could not be encoded, and why."""
        if len(plan.ends):
            self.end_rows(plan.ends)
        self.media.begin(plan)
        for start in plan.starts:
            self.rows.start(start)
            if start.max_tokens:
                self.sampler.start(start)
        if self.adapters is not None:
            self.adapters.start(plan.starts)
        self.rows.assign(plan.assigned)
        if plan.copies:
            self.model.kernels.copy_blocks(self.cache, plan.copies)
        self.rows.choose(plan.chosen)
        return self.media.encode_each(plan)

    def _compute(
        self, prefill: Sequence[Slice], rows: Ints, positions: Ints, groups: Sequence[PrefixGroup]
    ) -> tuple[Batch, Tensor]:
        """One pass over slices, and decode rows at these positions; its last hidden states."""
        batch = make_batch(
            prefill,
            rows,
            positions,
            groups,
            last_tokens=self.rows.last_tokens,
            tables=self.rows.tables,
            block_size=self.block_size,
            padded=self.model.kernels.padded,
            seen=self._seen,
            zeros=self._zeros,
        )
        if self.adapters is not None:
            self.adapters.begin_pass(prefill, rows)
        batch = self.media.joined(batch, prefill, rows, positions)
        batch = replace(batch, heard=self.media.heard(prefill, rows, batch.query_starts))
        if len(batch.fresh_blocks):
            # Slots that are not written yet are read with weight 0, but 0 times a NaN that an
            # earlier owner of the block may have left is not 0.
            self.model.kernels.clear_blocks(self.cache, batch.fresh_blocks)
        return batch, self.model(batch, self._layer_caches)

    def _draw(
        self, batch: Batch, hidden: Tensor, rows: Ints, plan: StepPlan, made: _Made, draws: Draws
    ) -> None:
        """Draw a token for each row from its logits; several tokens where guesses were right."""
        logits = _logits(self.model, self.adapters, hidden, batch.logit_tokens)
        if len(batch.draws) != logits.shape[0]:
            logits = logits.index_select(0, batch.draws)
        beams = np.flatnonzero(np.isin(rows, plan.searched))
        if len(beams):
            some = logits if len(beams) == len(rows) else logits[torch.from_numpy(beams)]
            best = candidates(some, rows[beams], plan.masks, plan.num_candidates, self.handles)
            made.add_candidates(draws.entries[beams], *best)
        sampled = self.sampler.sample(logits, rows, draws.positions, plan.masks)
        lines = draws.first_lines
        if len(lines) == len(draws):
            return self._keep(rows, sampled, made, draws.entries)
        tokens = sampled.tokens.cpu().numpy()
        failed = np.isin(np.arange(len(draws)), sampled.failed)
        while len(lines):
            self._keep(rows[lines], part_of(sampled, lines), made, draws.entries[lines])
            lines = lines[tokens[lines] == draws.guesses[lines]] + 1
            # A failure of a later line is reported by a later pass, in which it is the first line.
            lines = lines[~failed[lines] & self.rows.is_live(rows[lines]).cpu().numpy()]
        return None

    def _keep(self, rows: Ints, sampled: Sampled, made: _Made, entries: Lines) -> None:
        """Each row goes on from the token that it drew. Held rows do not change."""
        failed = torch.zeros(len(rows), dtype=torch.bool, device=sampled.tokens.device)
        failed[list(sampled.failed)] = True
        if not sampled.held:
            self.rows.drew(rows, sampled.tokens, failed)
        else:
            drawn = np.setdiff1d(np.arange(len(rows)), list(sampled.held))
            self.rows.drew(rows[drawn], sampled.tokens[drawn], failed[drawn])
        made.add(entries, sampled)


def _logits(model: Model, adapters: RowAdapters | None, hidden: Tensor, tokens: Tensor) -> Tensor:
    """Logits of some tokens of a pass. [len(tokens), V]"""
    count = tokens.shape[0]
    if adapters is not None:
        adapters.begin_logits(tokens)
    extra = model.kernels.padded(count) - count
    chosen = hidden.index_select(0, torch.cat([tokens, tokens.new_zeros(extra)]))
    return model.logits(chosen)[:count]


class _Made:
    """Collects the result of a plan."""

    def __init__(self, num_rows: int, repeat: int) -> None:
        self.tokens = np.full((num_rows, repeat), -1, np.int32)
        self.counts = np.zeros(num_rows, np.int32)
        self.logprobs: list[DrawnScores] = []
        self.scored: dict[int, Scores] = {}
        self.failed: list[int] = []
        self.errors: dict[int, str] = {}
        self.left_none: list[int] = []
        self.held: dict[int, int] = {}
        self.candidates: Candidates | None = None
        self.hidden: dict[int, Floats] = {}

    def add_candidates(self, entries: Lines, tokens: Tensor, logprobs: Tensor) -> None:
        ids = tokens.cpu().numpy().astype(np.int32)
        self.candidates = Candidates(entries.astype(np.int32), ids, logprobs.cpu().numpy())

    def add(self, entries: Lines, sampled: Sampled) -> None:
        tokens = sampled.tokens.cpu().numpy().astype(np.int32)
        self.tokens[entries, self.counts[entries]] = tokens
        self.counts[entries] += 1
        theirs = entries.astype(np.int32)
        self.logprobs += [DrawnScores(theirs[b.lines], b.scores) for b in sampled.logprobs]
        for line in sampled.failed:
            self.counts[entries[line]] -= 1
            self.failed.append(int(entries[line]))
        self.left_none += [int(entries[line]) for line in sampled.left_none]
        for line, error in sampled.errors.items():
            self.errors[int(entries[line])] = error
        for line, logits in sampled.held.items():
            self.counts[entries[line]] -= 1
            self.held[int(entries[line])] = logits

    def result(self, unencoded: dict[int, str]) -> StepResult:
        return StepResult(
            self.tokens,
            self.counts,
            joined_blocks(self.logprobs),
            self.scored,
            tuple(sorted(self.failed)),
            self.errors,
            self.held,
            self.candidates,
            self.hidden,
            unencoded=unencoded,
            left_none=tuple(self.left_none),
        )
