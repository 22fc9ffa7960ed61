"""CudaRunner: StepPlan -> passes on the device -> a result that is copied to the host.

A plan is run as its decode steps (decoding.py), then a pass over its prompts (prompts.py), as
graphs where possible. The device draws for all rows, with temperature, limits, edits, masks and
logprobs; other needs of rows use its logits beside that (looks.py). Both parts share the same
columns (device_rows.py), and a row always draws in the same way, so its tokens do not depend on the
plan it is in. Nothing here waits for the device, except where the sampler must draw at once
(sampler_draws.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from quire.executor.cuda.batch import PromptPass
from quire.executor.cuda.beams import CudaBeams
from quire.executor.cuda.decoding import Decoding, LogitsUses, Parts, SmallBatchRows
from quire.executor.cuda.device_ops import DeviceOps
from quire.executor.cuda.device_rows import DeviceColumns
from quire.executor.cuda.drawn_scores import Asking
from quire.executor.cuda.graphs import Graphs
from quire.executor.cuda.guessing import GuessedDecoding
from quire.executor.cuda.hidden import pack_hidden, send_hidden
from quire.executor.cuda.host_copies import HostCopies
from quire.executor.cuda.looks import Block, Lookers, Looks, NoLooks
from quire.executor.cuda.masks import MaskUploads
from quire.executor.cuda.more_scores import MoreScores
from quire.executor.cuda.prompts import NOTHING_CAPTURED, Captured, Prompts
from quire.executor.cuda.row_media import RowMedia
from quire.executor.cuda.sampler_draws import LateDraws, SamplerDraws
from quire.executor.cuda.scoring import CudaScoring, Packed
from quire.executor.cuda.step import CudaStep, Extras
from quire.executor.cuda.upload import Upload
from quire.executor.memory import caches_by_layer
from quire.executor.pass_media import PassMedia
from quire.executor.scoring import CUDA_BYTES, Scorer, num_lines_of
from quire.executor.shelf import Shelf
from quire.layers.kv_groups import KVGroup
from quire.models.model import Model
from quire.sampling.holding import Holding
from quire.step import StepPlan, no_ints
from quire.steps.handles import Handles

if TYPE_CHECKING:
    from quire.executor.cuda.adapters import CudaAdapters


class CudaRunner:
    """Runs plans one after the other on one model and one KV cache."""

    def __init__(
        self,
        model: Model,
        cache: Tensor,
        columns: DeviceColumns,
        sampler: Holding,
        ops: DeviceOps,
        *,
        handles: Handles,
        block_size: int,
        max_repeat: int,
        max_tokens: int,
        captured: Captured,
        capture: bool,
        groups: Sequence[KVGroup] = (),
        few_rows: SmallBatchRows | None = None,
        least_places: int = 1,
        scores_as_logits: bool = False,
        shelf: Shelf | None = None,
        adapters: CudaAdapters | None = None,
    ) -> None:
        """Plans have at most `max_tokens`. Only passes over prompts within `captured` are captured,
        if any. `groups`: of layers, whose blocks `cache` holds; empty: one of all layers.
        `scores_as_logits`: prompt logprobs are plain logits. `adapters`: the slots of LoRA
        adapters, None without."""
        self.model, self.cache, self.columns = model, cache, columns
        self.sampler, self.ops, self.block_size = sampler, ops, block_size
        self.device, self.graphs = columns.device, Graphs(capture=capture)
        groups = groups or (KVGroup(tuple(range(len(cache)))),)
        caches = caches_by_layer(cache, groups)
        self.media = PassMedia(shelf, columns.num_rows + 1)
        self._row_media = RowMedia(
            columns.num_rows + 1,
            self.device,
            has_axes=model.rotary.has_axes,
            pages=self.media.shelf.pages,
        )
        given = (model, caches, columns, ops, self.graphs, block_size, self._row_media)
        self._adapters = adapters
        parts = Parts(*given, few_rows, least_places, adapters)
        self._layer_caches = caches
        self._decoding = Decoding(parts, max_repeat=max_repeat)
        self._guessed = GuessedDecoding(parts, max_repeat=max_repeat)
        self._prompts = Prompts(
            *(parts, self.media),
            most_tokens=max_tokens,
            captured=captured if capture else NOTHING_CAPTURED,
        )
        self._host_copies = HostCopies(self.device)
        num_lines = num_lines_of(CUDA_BYTES, model.head.out_features, model.dtype)
        scorer = Scorer(self._logits, num_lines=num_lines, as_logits=scores_as_logits)
        self._scoring = CudaScoring(scorer, self._host_copies)
        self._beams = CudaBeams(columns, self._host_copies, handles)
        sampler.draw_by(ops.draw_beside)
        self._draws = SamplerDraws(columns, sampler)
        more = MoreScores(columns, self._host_copies)
        self._lookers = Lookers(more, self._beams, self._draws)
        self._masks, self._handles = MaskUploads(columns.edits, self.device, handles), handles

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> CudaStep:
        columns, upload, extras = self.columns, Upload(self.device), Extras()
        self.media.begin(plan)
        self._draws.forget(plan)
        columns.automata.bring(plan.starts, self._handles.automata, self.ops)
        if self._adapters is not None:
            self._adapters.rows.end(plan.ends)
            self._adapters.rows.start(plan.starts)
        columns.pack(upload, plan.ends, plan.starts, plan.assigned)
        self._row_media.pack(plan, upload)
        upload.add("copies", np.array(plan.copies, np.int64))
        upload.add("drawing rows", np.concatenate([plan.single, plan.tried]))
        upload.add("steps to draw", np.concatenate([np.ones_like(plan.single), plan.num_tried]))
        self._beams.pack(plan, upload)
        late = self._draws.begin(plan)
        laid_out = self._prompts.lay_out(plan, upload) if plan.prefill else None
        drawn_at = no_ints() if laid_out is None else laid_out.work.drawn_at
        rows, first = plan.sampled_rows(), len(drawn_at)
        beside = partial(self._looks, plan, upload, extras, late)
        drawn = beside(Block("prompts", rows[:first], drawn_at, 0))
        decode = plan.decode
        decoded = beside(Block("decode rows", decode.rows, decode.positions + np.int32(1), first))
        guessed = self._guessed.seat(plan, upload) if self._guessed.takes(plan) else None
        seated = None
        if len(decode) and guessed is None:
            seated = self._decoding.seat(plan, upload, decoded, first)
        packed, wanted = [], None
        if laid_out is not None:
            packed = self._pack_scores(plan, laid_out.work, upload)
            wanted = pack_hidden(plan.prefill, laid_out.work.query_starts, upload)
        bring_masks = self._masks.pack(plan.masks, upload)
        self._change(plan, upload)
        blocks = []
        if guessed is not None:
            blocks.append(self._guessed.run(guessed, upload))
            self._send_entries(guessed.asking, upload, self._guessed.entries(guessed), extras)
        if seated is not None:
            # Before the prompts: the host launches these while the device decodes.
            blocks.append(self._decoding.run(seated, upload, bring_masks, decoded))
            self._send_entries(seated.asking, upload, self._decoding.entries(seated), extras)
        if laid_out is not None:
            made = self._prompts.run(laid_out, upload, bring_masks, drawn)
            blocks.insert(0, made.block)
            self._send_entries(laid_out.asking, upload, made.entries, extras)
            extras.score_copies += self._scoring.run(packed, upload, made.hidden)
            extras.hidden_copies += send_hidden(wanted, upload, made.hidden, self._host_copies)
        return self._sent(blocks, extras, late, 1 if guessed is None else guessed.lines_each)

    def _looks(
        self, plan: StepPlan, upload: Upload, extras: Extras, late: LateDraws, block: Block
    ) -> LogitsUses:
        columns = self.columns
        asked = columns.special[block.rows] | columns.asks_more[block.rows]
        if not len(plan.searched) and not asked.any():
            return NoLooks()
        return Looks(self._lookers, plan, block, upload, extras, late)

    def _sent(
        self, blocks: list[Tensor], extras: Extras, late: LateDraws, lines_each: int
    ) -> CudaStep:
        """Begin to copy the plan's results to the host."""
        if not blocks:  # the plan only releases rows
            blocks = [torch.empty(1, 0, dtype=torch.int32, device=self.device)]
        sent = self._host_copies.send(blocks[0] if len(blocks) == 1 else torch.cat(blocks, 1))
        waiting = self._draws.send(late)
        draw_late = None if waiting is None else partial(self._draws.draw, late)
        return CudaStep(sent, extras, draw_late, lines_each)

    def _send_entries(
        self, asking: Asking, upload: Upload, entries: Tensor | None, extras: Extras
    ) -> None:
        if asking and entries is not None:
            extras.drawn_copies.append(asking.send(self._host_copies, upload, entries))

    @torch.inference_mode()
    def end_all(self) -> None:
        """End all rows."""
        self.columns.clear()
        self._draws.clear()
        self.sampler.end(np.arange(self.columns.num_rows, dtype=np.int32))
        if self._adapters is not None:
            self._adapters.rows.end_all()

    def forget_adapters(self) -> None:
        """Forget what the slots of LoRA adapters hold."""
        if self._adapters is not None:
            self._adapters.rows.forget()

    def close(self) -> None:
        self.graphs.close()
        self._decoding.close()
        self._guessed.close()
        self._prompts.close()
        if self._adapters is not None:
            self._adapters.close()

    def _change(self, plan: StepPlan, upload: Upload) -> None:
        """Send the upload, and apply all changes of the plan that come before its pass."""
        upload.send()
        self.columns.change(upload)
        self._row_media.change(upload)
        self._beams.choose(plan, upload)  # before the next lines, which count from there
        if len(plan.single) or len(plan.tried):
            self.columns.draw_some(upload.take("drawing rows"), upload.take("steps to draw"))
        if len(plan.ends):
            self.sampler.end(plan.ends)
        for start in plan.starts:
            if self.columns.special[start.row]:
                self.sampler.start(start)
        if plan.copies:
            self.ops.copy_blocks(self.cache, upload.take("copies").view(-1, 2))
        self.media.encode(plan)

    def _logits(self, hidden: Tensor, positions: Tensor) -> Tensor:
        if self._adapters is not None:
            self._adapters.rows.begin_logits(positions)
        return self.model.logits(hidden.index_select(0, positions))

    def _pack_scores(self, plan: StepPlan, work: PromptPass, upload: Upload) -> list[Packed]:
        return self._scoring.pack(plan.prefill, work.query_starts, upload)
