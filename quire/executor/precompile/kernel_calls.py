"""One call of every kernel of a model, on tiny inputs: this makes the warmup compile them.

The arguments have the types and constants of the model's real calls, so that nothing is left to
compile later.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from quire.backends.ops import AttentionInputs, LatentRows, RowNorm, StateHeads, StateRule
from quire.executor.cuda.batch import PromptPass
from quire.executor.cuda.drawn_scores import new_entries
from quire.executor.cuda.graphs import DecodePlaces
from quire.executor.cuda.host_copies import HostCopies
from quire.executor.cuda.upload import Upload
from quire.executor.precompile.call_room import ROWS, CallRoom
from quire.layer_parts.state import ConvolutionPlan, MambaPlan, StatePlan
from quire.layer_plan import dense_plans, expert_plans, mlps_of
from quire.params.row_sampling import RowSampling
from quire.step import Assigned, PrefixGroup, RowStart, Slice, StepPlan
from quire.steps.automata import TokenTexts
from quire.steps.row_schema import NOWHERE

if TYPE_CHECKING:
    from quire.executor.cuda.device_rows import DeviceColumns
    from quire.executor.cuda.triton_ops import TritonOps


class Calls(CallRoom):
    """One call of every kernel, on a few idle rows and blocks that are not in use."""

    def all(self) -> list[Callable[[], object]]:
        """quire's kernels for the first steps, the slowest to compile first."""
        by_heads = self.by_heads
        by_window = [
            call
            for one in by_heads
            for window in one.windows
            for call in (partial(one.prompts, window), partial(one.decode, window, ROWS))
        ]
        return [
            *by_window,
            partial(self.sample, truncated=False),
            *self.small_batch(),
            *([] if self.config.batch_invariant else [self.joined_gates]),
            *self.experts(),
            *self.states(),
            *(one.heads for one in by_heads),
            self.norms,
            self.gates,
            self.ends_of_a_step,
        ]

    @property
    def by_heads(self) -> list[Calls]:
        """The calls of each kind of heads among the layers."""
        return [Calls(self.config, spec, self.device) for spec in self.spec.by_heads()]

    def of_torch(self) -> list[Callable[[], object]]:
        """Ops of torch that the first steps call."""
        return [self.a_plan, self.products]

    def driver(self) -> None:
        """Initialise Triton's driver, which loads a library."""
        from triton.runtime import driver

        driver.active.get_current_device()

    def later(self) -> list[Callable[[], object]]:
        """Kernels that only some plans call: truncation, shared prefixes, many rows."""
        decodes = [call for one in self.by_heads for call in one.later_decodes()]
        return [partial(self.sample, truncated=True), *decodes]

    def later_decodes(self) -> list[Callable[[], object]]:
        from quire.backends.triton.tiles import MANY_ROWS, decode_tile

        decodes: list[Callable[[], object]]
        if self.config.batch_invariant:  # one tile serves any number of rows
            return [partial(self.decode, w, ROWS, shared=True) for w in self.windows]
        if self.shape.values_in_keys:  # one tile serves any number; no shared prefixes
            return []
        sizes = (ROWS, MANY_ROWS) if self.config.max_num_seqs >= MANY_ROWS else (ROWS,)
        # Kernels depend on tiles, and tiles not always on the number of rows.
        done = {(decode_tile(self.shape, ROWS), False)}  # the first steps have this one
        decodes = []
        for size, shared in itertools.product(sizes, (True, False)):
            kind = (decode_tile(self.shape, size, shared=shared), shared)
            if kind not in done:
                done.add(kind)
                decodes += [partial(self.decode, w, size, shared=shared) for w in self.windows]
        return decodes

    def features(self) -> list[Callable[[], object]]:
        """Kernels for rows with edits or logprobs: compiled ahead, but not called ahead."""
        return [
            partial(self.edits, truncated=True),
            partial(self.edits, truncated=False),
            self.scores,
            self.automata,
        ]

    def prompts(self, window: int | None) -> None:
        from quire.backends.triton.invariant import SteadyKernels
        from quire.backends.triton.kernels import TritonKernels

        shape = self.shape
        starts = torch.tensor([0, 1], device=self.device)
        lengths = torch.tensor([1], device=self.device)
        tables = self.empty(1, 4, dtype=torch.int32)
        inputs = AttentionInputs(starts, lengths, tables, lengths, 1)
        kernels = (SteadyKernels if self.config.batch_invariant else TritonKernels)(shape)
        out = self.empty(1, shape.num_heads * shape.value_dim)
        q = self.empty(1, shape.num_heads, shape.head_dim)
        attention = kernels.prefill_attention(inputs, 1, window)
        attention.attend(q, *self.cache(), out, self.sinks())

    def decode(self, window: int | None, num_places: int, *, shared: bool = False) -> None:
        from quire.executor.cuda.triton_ops import TritonOps

        columns = self.columns()
        # The number of rows of the real buffers, on which some constants depend.
        max_rows = max(ROWS, self.config.max_num_seqs)
        steady = self.config.batch_invariant
        kinds = frozenset({self.kind(window)})
        ops = TritonOps(columns, kinds, self.shape.block_size, max_rows=max_rows, steady=steady)
        places = DecodePlaces.make(num_places, 1, columns.resting, self.device)
        prefixes = None
        if shared:
            ids = torch.arange(2, dtype=torch.int32).numpy()
            prefixes = ops.list_prefixes(num_places, (PrefixGroup(ids[:1], ids),), [ids])
        fed = ops.feed(places, prefixes)
        q = self.empty(num_places, self.shape.num_heads, self.shape.head_dim)
        fed.attention[self.kind(window)].attend(q, *self.cache(), self.sinks())

    def small_batch(self) -> list[Callable[[], object]]:
        """The products for steps with few rows."""
        if self.config.batch_invariant:
            return []
        from quire.backends.triton.small_batch import (
            Norm,
            compile_product,
            embed,
            products_of,
        )

        def embed_a_token() -> None:
            ids = self.empty(1, dtype=torch.int64)
            line = self.empty(1, self.spec.hidden_size)
            embed(ids, line, Norm(line[0], 1e-5))

        products = products_of(self.spec, self.dtype)
        tiled = [product for product in products if product.is_tiled(self.capability)]
        compiled: list[Callable[[], object]] = [
            partial(compile_product, one) for one in products if one not in tiled
        ]
        if tiled:
            from quire.backends.cuda_c.plain import load_kernels

            compiled.append(partial(load_kernels, tiled, self.device))
        packed = [] if self.shape.fp8_kv else [self.packed]
        return [*packed, *compiled, embed_a_token] if products else []

    def joined_gates(self) -> None:
        """Products of gate and up for many rows."""
        from quire.backends.cuda_c.gated import GatedKind, load_kernels

        hidden = self.spec.hidden_size
        kinds = [
            GatedKind(2 * mlp.width, hidden, self.dtype, mlp.activation)
            for mlp in dense_plans(self.spec.layers)
            if mlp.gated
        ]
        load_kernels([kind for kind in kinds if kind.is_tiled(self.device)], self.device)

    def experts(self) -> list[Callable[[], object]]:
        """The products of mixtures of experts: compiled for tiles of every size, but not called."""
        from quire.backends.triton.experts import all_tiles, compile_experts

        hidden = self.spec.hidden_size
        return [
            partial(compile_experts, plan, hidden, tile, self.dtype)
            for plan in expert_plans(self.spec.layers)
            for tile in dict.fromkeys(all_tiles(plan, self.dtype))
        ]

    def states(self) -> list[Callable[[], object]]:
        """The states of layers that keep some: one idle row, and a slice without tokens."""
        plans = dict.fromkeys(plan for plan in self.spec.states if plan is not None)
        return [partial(self.state, plan, single) for plan in plans for single in (True, False)]

    def state(self, plan: StatePlan, single: bool) -> None:
        from quire.backends.triton.states import SlicesStates, TritonStates

        kind = torch.int32 if single else torch.int64
        starts, none = (self.empty(n, dtype=kind) for n in (2, 1))
        given = (starts, none, self.empty(1, 4, dtype=torch.int32), self.shape.block_size)
        states = TritonStates(*given, none) if single else SlicesStates(*given, num_tokens=1)
        taps, heads, rates = self.wide(plan.channels, plan.reach), None, None
        if isinstance(plan, ConvolutionPlan):
            x, biased = self.empty(1, plan.channels), plan.bias
        else:
            x = self.empty(1, plan.channels + plan.value_width)[:, : plan.channels]
            heads = StateHeads(*(self.wide(plan.num_heads),) * 3)
            is_mamba = isinstance(plan, MambaPlan)
            rates = self.wide(1, (1 if is_mamba else 2) * plan.num_heads)
            biased = isinstance(plan, MambaPlan) and plan.convolution_bias
        bias = self.wide(plan.channels) if biased else None
        states.take_up(StateRule(plan, taps, bias, heads), x, rates, *self.cache())

    def packed(self) -> None:
        """Attention of few rows that reads q, k and v from one packed projection."""
        from quire.executor.cuda.planned_decode import PlannedDecode
        from quire.executor.cuda.triton_ops import TritonOps

        columns, window, shape = self.columns(), next(iter(self.windows)), self.shape
        max_rows = max(ROWS, self.config.max_num_seqs)
        kind = self.kind(window)
        ops = TritonOps(columns, frozenset({kind}), shape.block_size, max_rows=max_rows)
        places = DecodePlaces.make(ROWS, 1, columns.resting, self.device)
        fed = ops.feed(places, None)
        step, width = cast(PlannedDecode, fed.attention[kind]), shape.head_dim
        qkv = self.empty(ROWS, (shape.num_heads + 2 * shape.num_kv_heads) * width)
        turn = self.empty(ROWS, width // 2, dtype=torch.float32)
        norms = self.head_norms()
        step.attend_packed(qkv, turn, turn, *self.cache(), norms)

    def ops(self, columns: DeviceColumns) -> TritonOps:
        """For calls beside attention."""
        from quire.executor.cuda.triton_ops import TritonOps

        return TritonOps(columns, frozenset(), self.shape.block_size)

    def sample(self, *, truncated: bool) -> None:
        ops = self.ops(self.columns())
        nobody = torch.full((ROWS,), -1, dtype=torch.int32, device=self.device)
        logits = self.empty(ROWS, self.spec.vocab_size)
        ops.draw(logits, nobody, nobody, truncated=truncated)

    def edits(self, *, truncated: bool) -> None:
        ops = self.ops(self.columns())
        nobody = torch.full((ROWS,), -1, dtype=torch.int32, device=self.device)
        logits = self.empty(ROWS, self.spec.vocab_size)
        ops.draw(logits, nobody, nobody, truncated=truncated, edited=nobody, ahead=truncated)

    def automata(self) -> None:
        """A grammar with one state, which no row follows."""
        columns = self.columns(num_states=1)
        texts = np.zeros(self.spec.vocab_size + 1, np.int32), np.zeros(1, np.uint8)
        columns.automata.learn(TokenTexts(*texts, end_ids=()))
        ops = self.ops(columns)
        ops.make_lines(0, 1)
        nobody = torch.full((ROWS,), -1, dtype=torch.int32, device=self.device)
        drawn = self.empty(ROWS, dtype=torch.int64)
        ops.walk(nobody, nobody, drawn, drawn.to(torch.uint8))

    def scores(self) -> None:
        ops = self.ops(self.columns())
        nobody = torch.full((ROWS,), -1, dtype=torch.int32, device=self.device)
        logits = self.empty(ROWS, self.spec.vocab_size)
        drawn, out = self.empty(ROWS, dtype=torch.int64), new_entries(1, ROWS, self.device)
        ops.score(logits, nobody, drawn, drawn.to(torch.uint8), out, torch.zeros_like(nobody[:1]))

    def heads(self) -> None:
        from quire.backends.triton.heads import norm_rope_store

        shape, width = self.shape, self.shape.head_dim
        if shape.values_in_keys:
            return self.latents()
        num_all = shape.num_heads + 2 * shape.num_kv_heads
        turn = self.empty(ROWS, width // 2, dtype=torch.float32)
        slots = torch.full((ROWS,), -1, device=self.device)
        norms = self.head_norms()
        qkv = self.empty(ROWS, num_all, width)
        norm_rope_store(qkv, turn, turn, slots, *self.cache(), shape, norms)

    def latents(self) -> None:
        from quire.backends.triton.latent import rotate_latents

        plan = self.spec.layers[0].attention
        if plan.latent is not None:
            norm = RowNorm(self.norm_weight(plan.latent.norm, plan.latent.kv_rank), 0.5)
            q = self.empty(ROWS, plan.num_heads, plan.latent.query_dims)
            row, turn = self.empty(ROWS, plan.head_dim), self.wide(ROWS, plan.angle_dims // 2)
            nowhere = torch.full((ROWS,), -1, device=self.device)
            rotate_latents(LatentRows(q, row, norm, turn, turn), nowhere, self.cache()[0])

    def norms(self) -> None:
        from quire.backends.triton import elementwise

        x, plan = self.empty(ROWS, self.spec.hidden_size), self.spec.norm
        if plan.kind == "rms":
            weight = self.norm_weight(plan, x.shape[1])
            elementwise.add_rms_norm(x, x.clone(), weight, plan.eps)
            elementwise.rms_norm(x, weight, plan.eps)
        else:
            given = (self.wide(x.shape[1]), self.wide(x.shape[1]) if plan.bias else None, plan.eps)
            elementwise.add_layer_norm(x, x.clone(), *given)
            elementwise.layer_norm(x, *given)

    def gates(self) -> None:
        from quire.backends.triton.elementwise import activate, gate_mul

        for mlp in dict.fromkeys(mlp for layer in self.spec.layers for mlp in mlps_of(layer)):
            if mlp.gated:
                gate_mul(self.empty(ROWS, 2 * mlp.width), mlp.activation)
            elif mlp.activation != "xielu":  # which has no kernel
                activate(self.empty(ROWS, mlp.width), mlp.activation)

    def a_plan(self) -> None:
        """Ops of torch around a pass: torch loads a kernel when it is first used."""
        columns, upload, ids = self.columns(), Upload(self.device), np.zeros(2, np.int32)
        start = RowStart(0, RowSampling(), 0, 0, ids, ids[:0], ids[:0], 1)
        assigned = Assigned(ids[:1], ids[:1], ids[:1])
        plan = StepPlan((start,), ids[:1], assigned, prefill=(Slice(0, 0, ids, (0,)),))
        columns.pack(upload, plan.ends, plan.starts, plan.assigned)
        work = PromptPass(plan.prefill, upload, self.shape.block_size)
        upload.send()
        columns.change(upload)
        batch = work.batch(columns)
        rows, at = upload.take("sampled rows"), upload.take("drawn at")
        torch.where(columns.live(rows), rows, NOWHERE).to(torch.int32)
        hidden = self.empty(len(batch.token_ids), self.spec.hidden_size)
        hidden.index_select(0, batch.logit_tokens)
        made = columns.accept(rows, rows, at, rows.to(torch.uint8))
        HostCopies(self.device).send(torch.cat([made, made])[None].to(torch.int32).clone())

    def ends_of_a_step(self) -> None:
        columns = self.columns()
        ops = self.ops(columns)
        places = DecodePlaces.make(ROWS, 1, columns.resting, self.device)
        ops.feed(places, None)
        drawn = self.empty(ROWS, dtype=torch.int64)
        ops.accept(places, drawn, drawn.to(torch.uint8))
        pairs = torch.full((1, 2), -1, device=self.device)
        ops.copy_blocks(self.caches(), pairs)

    def products(self) -> None:
        """A matrix product, which loads torch's library for them."""
        x = self.empty(ROWS, self.spec.hidden_size)
        torch.nn.functional.linear(x, x)
