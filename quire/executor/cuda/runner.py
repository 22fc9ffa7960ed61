"""CudaRunner: StepPlan -> passes on the device -> a result that comes home by itself.

Two ways through. Rows that the device draws for by itself, with temperature, limits, edits, masks
and logprobs: the plan's decode steps (decoding.py), then a pass over its prompts (prompts.py), both
as graphs. Where a row needs the sampler, or is a beam, the whole plan is one eager pass after the
other. Both ways read and change the same columns (device_rows.py), and a row always
draws in the same way, so its tokens do not depend on the plan it is in. Nothing here waits for the
device, the sampler excepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.executor.cuda.batch import EagerPass
from quire.executor.cuda.beams import CudaBeams
from quire.executor.cuda.decoding import Decoding, Look, Parts, SmallBatchRows
from quire.executor.cuda.device_ops import DeviceOps
from quire.executor.cuda.device_rows import NOWHERE, DeviceColumns
from quire.executor.cuda.drawn_scores import Asking, new_entries
from quire.executor.cuda.graphs import Graphs
from quire.executor.cuda.hidden import pack_hidden, send_hidden
from quire.executor.cuda.host_copies import HostCopies
from quire.executor.cuda.masks import MaskUploads
from quire.executor.cuda.more_scores import MoreScores
from quire.executor.cuda.prompts import Prompts
from quire.executor.cuda.scoring import CudaScoring, Packed
from quire.executor.cuda.step import CudaStep, Extras
from quire.executor.cuda.upload import Upload
from quire.executor.memory import caches_by_layer
from quire.executor.scoring import CUDA_BYTES, Scorer, num_lines_of
from quire.layer_plan import KVGroup
from quire.models.model import Model
from quire.request import Ints
from quire.sampling.holding import HoldingSampler
from quire.step import Masks, StepPlan, no_ints
from quire.steps.handles import Handles


class CudaRunner:
    """Runs plans one after the other on one model and one KV cache."""

    def __init__(
        self,
        model: Model,
        cache: Tensor,
        columns: DeviceColumns,
        sampler: HoldingSampler,
        ops: DeviceOps,
        *,
        handles: Handles,
        block_size: int,
        max_repeat: int,
        max_tokens: int,
        captured_tokens: int,
        capture: bool,
        groups: Sequence[KVGroup] = (),
        few_rows: SmallBatchRows | None = None,
        scores_as_logits: bool = False,
    ) -> None:
        """A plan has at most `max_tokens`; of passes over prompts those of at most
        `captured_tokens` are captured, if anything is. `groups` of layers, whose blocks `cache`
        holds; none given: one of all. `scores_as_logits`: prompt logprobs are to be plain logits.
        """
        self.model, self.cache, self.columns = model, cache, columns
        self.sampler, self.ops, self.block_size = sampler, ops, block_size
        self.device, self.graphs = columns.device, Graphs(capture=capture)
        groups = groups or (KVGroup(tuple(range(len(cache)))),)
        caches = caches_by_layer(cache, groups)
        parts = Parts(model, caches, columns, ops, self.graphs, block_size, few_rows)
        self._layer_caches = caches
        self._decoding = Decoding(parts, max_repeat=max_repeat)
        self._prompts = Prompts(
            parts, most_tokens=max_tokens, captured_tokens=captured_tokens if capture else 0
        )
        self._host_copies = HostCopies(self.device)
        num_lines = num_lines_of(CUDA_BYTES, model.head.out_features, model.dtype)
        scorer = Scorer(self._logits, num_lines=num_lines, as_logits=scores_as_logits)
        self._scoring = CudaScoring(scorer, self._host_copies)
        self._beams = CudaBeams(columns, self._host_copies, handles)
        self._more = MoreScores(columns, self._host_copies)
        self._masks = MaskUploads(columns.edits, self.device, handles)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> CudaStep:
        columns, upload = self.columns, Upload(self.device)
        columns.pack(upload, plan.ends, plan.starts, plan.assigned)
        upload.add("copies", np.array(plan.copies, np.int64))
        upload.add("single rows", plan.single)
        special = columns.drawing(_all_rows(plan)).special
        if special or len(plan.released) or len(plan.searched):
            return self._eager(plan, upload)
        first = sum(len(one.sample_into) for one in plan.prefill)
        seated = self._decoding.seat(plan, upload, first) if len(plan.decode) else None
        laid_out = self._prompts.lay_out(plan, upload) if plan.prefill else None
        packed, wanted = [], None
        if laid_out is not None:
            packed = self._pack_scores(plan, laid_out.work, upload)
            wanted = pack_hidden(plan.prefill, laid_out.work.query_starts, upload)
        bring_masks = self._masks.pack(plan.masks, upload)
        blocks, extras = [], Extras()
        drawn, decoded = self._looks(plan, first, upload, extras)
        self._change(plan, upload)
        if seated is not None:
            # First: while the device decodes, the host launches what the prompts need.
            blocks.append(self._decoding.run(seated, upload, bring_masks, decoded))
            self._send_entries(seated.asking, upload, self._decoding.entries(seated), extras)
        if laid_out is not None:
            made = self._prompts.run(laid_out, upload, bring_masks, drawn)
            blocks.insert(0, made.block)
            self._send_entries(laid_out.asking, upload, made.entries, extras)
            extras.score_letters += self._scoring.run(packed, upload, made.hidden)
            extras.hidden_letters += send_hidden(wanted, upload, made.hidden, self._host_copies)
        block = blocks[0] if len(blocks) == 1 else torch.cat(blocks, 1)
        return CudaStep(self._host_copies.send(block), extras)

    def _looks(
        self, plan: StepPlan, first: int, upload: Upload, extras: Extras
    ) -> tuple[Look, Look]:
        """For those that ask for more than an entry holds: what looks at the logits of the first
        rows that draw, at the end of prompts, and at those of the decode rows."""
        rows = plan.sampled_rows()
        return (
            self._look("prompts", rows[:first], 0, upload, extras),
            self._look("decode rows", rows[first:], first, upload, extras),
        )

    def _look(self, name: str, rows: Ints, first: int, upload: Upload, extras: Extras) -> Look:
        groups = self._more.pack(upload, name, rows, first)

        def look(logits: Tensor, tokens: Tensor, step: int) -> None:
            extras.more_letters += self._more.score(groups, upload, logits, tokens, step)

        return look

    def _send_entries(
        self, asking: Asking, upload: Upload, entries: Tensor | None, extras: Extras
    ) -> None:
        if asking and entries is not None:
            extras.drawn_letters.append(asking.send(self._host_copies, upload, entries))

    @torch.inference_mode()
    def end_all(self) -> None:
        """Every row is free."""
        self.columns.clear()
        self.sampler.end(np.arange(self.columns.num_rows, dtype=np.int32))

    def close(self) -> None:
        self.graphs.close()
        self._decoding.close()
        self._prompts.close()

    def _change(self, plan: StepPlan, upload: Upload) -> None:
        """Send the parcel, and do what the plan says before its pass."""
        upload.send()
        self.columns.change(upload)
        if len(plan.single):
            self.columns.draw_once(upload.take("single rows"))
        if len(plan.ends):
            self.sampler.end(plan.ends)
        for start in plan.starts:
            if self.columns.special[start.row]:
                self.sampler.start(start)
        if plan.copies:
            self.ops.copy_blocks(self.cache, upload.take("copies").view(-1, 2))

    def _eager(self, plan: StepPlan, upload: Upload) -> CudaStep:
        """One pass, and where rows that need the sampler were to repeat, pass after pass."""
        extras, blocks = Extras(), []
        released, plan = plan.released, replace(plan, released=no_ints())
        if not plan.prefill and not len(plan.decode):
            self._change(plan, upload)
            block = self._release(released, plan.masks, 0, extras)[None]
            return CudaStep(self._host_copies.send(block.to(torch.int32)), extras)
        asking = Asking.pack(upload, "all", self.columns.num_logprobs[plan.sampled_rows()])
        entries = (
            new_entries(plan.repeat, len(plan.sampled_rows()), self.device) if asking else None
        )
        for k in range(plan.repeat):
            one = plan if k == 0 else _later(plan, k)
            sent = upload if k == 0 else Upload(self.device)
            work = EagerPass(one, sent, self.block_size)
            picked = self._pick(one, sent, plan.single if k else no_ints())
            packed = self._pack_scores(one, work, sent)
            wanted = pack_hidden(one.prefill, work.query_starts, sent)
            self._beams.pack(one, sent)
            bring_masks = self._masks.pack(one.masks, sent)
            look = self._look("all", one.sampled_rows(), 0, sent, extras)
            if k == 0:
                self._change(plan, sent)
            else:
                sent.send()
            self._beams.choose(one, sent)
            batch = work.batch(self.columns)
            hidden = self.model(batch, self._layer_caches)
            extras.score_letters += self._scoring.run(packed, sent, hidden)
            extras.hidden_letters += send_hidden(wanted, sent, hidden, self._host_copies)
            logits = self.model.logits(hidden.index_select(0, batch.logit_tokens))
            logits = work.drawn_logits(batch, logits)
            extras.candidates = self._beams.rank(one, sent, logits)
            bring_masks()
            tokens, failed = self._draw_lines(one, work, sent, logits, picked, extras)
            rows, at = sent.take("sampled rows"), sent.take("drawn at")
            look(logits, tokens, k)
            if entries is not None:
                step = torch.full((1,), k, dtype=torch.int32, device=self.device)
                self.ops.score(logits, self._drawing(rows), tokens, failed, entries, step)
            if extras.held:
                # They drew nothing: the row that rests stands in for them.
                rows[list(extras.held)] = self.columns.resting
            blocks.append(self.columns.accept(rows, tokens, at, failed))
        self._send_entries(asking, upload, entries, extras)
        block = torch.stack(blocks)
        if len(released):
            late = self._release(released, plan.masks, block.shape[1], extras)
            block = torch.cat([block, late[None]], 1)
        return CudaStep(self._host_copies.send(block.to(torch.int32)), extras)

    def _release(self, rows: Ints, masks: Masks | None, first: int, extras: Extras) -> Tensor:
        """What rows draw from logits that were held; line i of them is line first + i of all."""
        positions = [self.sampler.position_held(row) for row in rows.tolist()]
        sampled = self.sampler.sample_held(rows, masks)
        failed = torch.zeros(len(rows), dtype=torch.bool, device=self.device)
        failed[list(sampled.failed)] = True
        extras.add(sampled, np.arange(first, first + len(rows), dtype=np.int32))
        at = torch.tensor(positions, device=self.device)
        row = torch.from_numpy(rows).to(self.device, torch.int64)
        return self.columns.accept(row, sampled.tokens, at, failed)

    def _logits(self, hidden: Tensor, positions: Tensor) -> Tensor:
        return self.model.logits(hidden.index_select(0, positions))

    def _pack_scores(self, plan: StepPlan, work: EagerPass, upload: Upload) -> list[Packed]:
        return self._scoring.pack(plan.prefill, work.query_starts, upload)

    def _pick(self, plan: StepPlan, upload: Upload, resting: Ints) -> Ints:
        """Which of the drawing lines the sampler draws for; it counts what it draws, so not for
        rows that rest."""
        rows = plan.sampled_rows()
        special = self.columns.special[rows] & ~np.isin(rows, resting)
        upload.add("special lines", np.flatnonzero(special))
        upload.add("simple lines", np.flatnonzero(~special))
        edited = self.columns.edits.edited[rows[~special]]
        upload.add("edited simple lines", np.flatnonzero(edited))
        return np.flatnonzero(special).astype(np.int32)

    def _drawing(self, rows: Tensor) -> Tensor:
        """The rows, -1 for those that rest. int32"""
        return torch.where(self.columns.live(rows), rows, NOWHERE).to(torch.int32)

    def _draw_lines(
        self,
        plan: StepPlan,
        work: EagerPass,
        upload: Upload,
        logits: Tensor,
        picked: Ints,
        extras: Extras,
    ) -> tuple[Tensor, Tensor]:
        """A token for every line: the sampler's for those that need it, else the kernel's."""
        on_host = plan.sampled_rows()
        truncated = self.columns.drawing(np.delete(on_host, picked)).truncated
        rows, at = upload.take("sampled rows"), upload.take("drawn at").to(torch.int32)
        drawing = self._drawing(rows)
        edited = upload.take("edited simple lines").to(torch.int32)
        draw: Any = partial(
            self.ops.draw, truncated=truncated, edited=edited if len(edited) else None
        )
        if not len(picked):
            return draw(logits, drawing, at) if len(rows) else _nothing(rows)
        tokens, failed = torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.bool)
        simple, special = upload.take("simple lines"), upload.take("special lines")
        if len(simple):
            theirs = draw(logits.index_select(0, simple), drawing[simple], at[simple])
            tokens[simple], failed[simple] = theirs
        sampled = self.sampler.sample(
            logits.index_select(0, special), on_host[picked], work.drawn_at[picked], plan.masks
        )
        tokens[special] = sampled.tokens
        failed[special[list(sampled.failed)]] = True
        extras.add(sampled, picked)
        return tokens, failed


def _all_rows(plan: StepPlan) -> Ints:
    """Every row a plan computes something for."""
    slices = np.array([piece.row for piece in plan.prefill], np.int32)
    return np.concatenate([slices, plan.sampled_rows()])


def _later(plan: StepPlan, k: int) -> StepPlan:
    """Pass k of a plan of decode rows: nothing changes but where they stand."""
    decode = replace(plan.decode, positions=plan.decode.positions + np.int32(k))
    return StepPlan(decode=decode, groups=plan.groups, masks=plan.masks)


def _nothing(rows: Tensor) -> tuple[Tensor, Tensor]:
    """What nobody drew."""
    return rows, rows.to(torch.bool)
