"""DeviceOps in plain torch, and engines over them: what the CUDA runner does, on any device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.backends.ops import AttentionInputs, HeadNorms
from quire.cache.pool import BlockPool
from quire.config import EngineConfig
from quire.engine import Engine
from quire.executor.adapters import make_sites, row_adapters
from quire.executor.cuda.device_edits import EditColumn
from quire.executor.cuda.device_ops import Feed
from quire.executor.cuda.device_rows import DeviceColumns
from quire.executor.cuda.graphs import DecodePlaces
from quire.executor.cuda.prompts import NOTHING_CAPTURED, Captured
from quire.executor.cuda.runner import CudaRunner
from quire.executor.cuda.step import CudaStep
from quire.executor.executor import Executor, ExecutorFacts, PendingStep
from quire.executor.memory import groups_of, make_cache, windows_of
from quire.executor.samplers import sampler_for
from quire.executor.shelf import Shelf
from quire.layers.adapted import AdapterSites
from quire.layers.attention import Kind
from quire.layers.kv_groups import BlockTables
from quire.layers.tp import TensorParallel
from quire.models.decoder import head_shape
from quire.models.fallback.loaded import LoadedModule
from quire.models.registry import build_any_model
from quire.models.weight_parts import Weights
from quire.request import Ints, Request
from quire.sampling.draw import draw_from_all
from quire.sampling.logprobs import log_probabilities, token_logprobs
from quire.sampling.scan import best
from quire.sampling.seeds import NoiseKeys
from quire.sampling.truncation import NO_TOP_K, Limits, truncate
from quire.scheduler.limits import Limits as StepLimits
from quire.scheduler.pacing import Pacing
from quire.scheduler.scheduler import MakeMasks, Scheduler
from quire.scheduler.scoring import score_lead
from quire.scheduler.sequence import Guide, Sequence
from quire.spec import ModelSpec
from quire.step import PrefixGroup, StepPlan
from quire.steps.automata import AutomatonRoom
from quire.steps.handles import Handles
from quire.steps.row_schema import EMPTIED, NOWHERE, Column
from tests.backends.reference import ReferenceAttention, ReferenceKernels
from tests.executor.cuda.plain_edits import PlainEdits
from tests.executor.cuda.plain_guesses import PlainGuesses

EVERYTHING = Captured(10**6, 10**12)


class RestingAttention(ReferenceAttention):
    """The reference, with tokens that have no slot."""

    def rope_and_store(
        self,
        qk: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        stored = self.inputs.slots >= 0
        if stored.all():
            return super().rope_and_store(qk, v, cos, sin, keys, values, norms)
        some = replace(self.inputs, slots=self.inputs.slots[stored])
        writer = ReferenceAttention(self.shape, some, self.window)
        turn = cos[stored], sin[stored]
        writer.rope_and_store(qk[stored], v[stored], *turn, keys, values, norms)
        probe = replace(self.inputs, slots=self.inputs.slots[:0])
        reader = ReferenceAttention(self.shape, probe, self.window)
        return reader.rope_and_store(qk, v, cos, sin, keys, values, norms)


class RestingKernels(ReferenceKernels):
    """The reference kernels, with rows that rest."""

    def plan_attention(self, inputs: AttentionInputs, window: int | None) -> RestingAttention:
        return RestingAttention(self.shape, inputs, window)


class PlainOps(PlainGuesses):
    """DeviceOps without a kernel of its own."""

    def __init__(
        self,
        columns: DeviceColumns,
        kinds: frozenset[Kind],
        block_size: int,
        state_tables: frozenset[int] = frozenset(),
    ) -> None:
        assert not state_tables, "states are not in plain torch here"
        self.columns, self.kinds, self.block_size = columns, kinds, block_size

    def list_prefixes(
        self, num_places: int, groups: tuple[PrefixGroup, ...], members: list[Ints]
    ) -> None:
        return None

    def feed(self, places: DecodePlaces, prefixes: object) -> Feed:
        columns, rows = self.columns, places.rows.long()
        tokens, position = (
            columns.ints[Column.LAST_TOKEN][rows],
            columns.ints[Column.POSITION][rows],
        )
        return self.lines(rows, columns.live(rows), tokens, position)

    def lines(self, rows: Tensor, live: Tensor, tokens: Tensor, position: Tensor) -> Feed:
        columns, size = self.columns, self.block_size
        block = columns.tables[:, rows, position // size].long()
        slots = torch.where(live, block * size + position % size, NOWHERE)
        inputs = [
            AttentionInputs(
                query_starts=torch.arange(len(rows) + 1),
                context_lens=torch.where(live, position + 1, 0),
                tables=table[rows],
                slots=own_slots,
                num_prefill=0,
            )
            for table, own_slots in zip(columns.tables, slots, strict=True)
        ]
        return Feed(
            token_ids=tokens,
            positions=position,
            slots=slots.unbind(),
            rows=torch.where(live, rows, NOWHERE).int(),
            next_at=(position + 1).int(),
            attention={
                kind: RestingAttention(kind.shape, inputs[kind.table], kind.window)
                for kind in self.kinds
            },
        )

    def draw(
        self,
        logits: Tensor,
        rows: Tensor,
        next_at: Tensor,
        *,
        truncated: bool,
        edited: Tensor | None = None,
        ahead: bool = False,
    ) -> tuple[Tensor, Tensor]:
        if edited is None:
            return self.draw_plain(logits, rows, next_at, truncated=truncated)
        editing = PlainEdits(self.columns.edits)
        lines = [line for line in edited.tolist() if line >= 0 and rows[line] >= 0]
        logits = logits.to(torch.float32, copy=True)  # logprobs are of the raw ones
        for line in lines:
            logits[line] = editing.edit(logits[line], int(rows[line]), int(next_at[line]))
        tokens, failed = self.draw_plain(logits, rows, next_at, truncated=truncated)
        if ahead:
            self.go_ahead(logits, rows, next_at, tokens, lines)
        failed = failed.to(torch.uint8)
        for line in lines:
            if not failed[line]:
                editing.remember(int(rows[line]), int(tokens[line]))
            elif logits[line].amax() == -torch.inf:
                failed[line] = EMPTIED
        return tokens, failed

    def go_ahead(
        self, logits: Tensor, rows: Tensor, next_at: Tensor, tokens: Tensor, lines: list[int]
    ) -> None:
        """Rows with masks draw without their limits, and rest where that is not within them."""
        sampling, own = self.columns.sampling_columns, self.columns.edits.ints[EditColumn.LINE]
        free = [i for i in lines if own[rows[i]] == rows[i] and sampling.temperature[rows[i]] > 0]
        for line in free:
            row, one = int(rows[line]), slice(line, line + 1)
            kept = [column[row].clone() for column in self.limits]
            for column, off in zip(self.limits, (0, 1.0, -torch.inf), strict=True):
                column[row] = off
            tokens[one] = self.draw_plain(logits[one], rows[one], next_at[one], truncated=True)[0]
            for column, value in zip(self.limits, kept, strict=True):
                column[row] = value
            scores = logits[line].double() / sampling.temperature[row]
            score = scores[tokens[line]].item()
            scores[tokens[line]] = -torch.inf
            above = scores[scores >= score]
            top_k, top_p, log_min_p = (value.item() for value in kept)
            mass = (above - score).exp().sum().item()
            within = not top_k or len(above) < top_k
            within &= score >= max([score, *above.tolist()]) + log_min_p
            if not within or (top_p < 1 and mass * (1 - top_p) >= 0.999 * top_p):
                self.columns.ints[Column.FROZEN, row] = 1

    @property
    def limits(self) -> tuple[Tensor, Tensor, Tensor]:
        sampling = self.columns.sampling_columns
        return sampling.top_k, sampling.top_p, sampling.log_min_p

    def draw_beside(
        self, logits: Tensor, rows: Tensor, next_at: Tensor, *, truncated: bool
    ) -> tuple[Tensor, Tensor]:
        return self.draw_plain(logits, rows, next_at, truncated=truncated)

    def draw_plain(
        self, logits: Tensor, rows: Tensor, next_at: Tensor, *, truncated: bool
    ) -> tuple[Tensor, Tensor]:
        sampling_columns, at = self.columns.sampling_columns, rows.long().clamp(min=0)
        temperature = sampling_columns.temperature[at]
        tokens, top = best(logits)
        failed = ~top.isfinite() & (rows >= 0)
        top_k = sampling_columns.top_k[at].long()
        log_min_p, top_p = sampling_columns.log_min_p[at], sampling_columns.top_p[at]
        drawn = (temperature > 0) & (rows >= 0) & ~failed
        is_open = (top_k == 0) & (top_p == 1) & (log_min_p < -1e30)
        assert truncated or not (drawn & ~is_open).any(), "rows with limits in a plan without"
        groups = [(drawn & is_open).nonzero()[:, 0], *(drawn & ~is_open).nonzero()]
        for some in filter(len, groups):
            key = sampling_columns.noise_key[at[some]]
            keys = NoiseKeys(
                key & 0xFFFFFFFF,
                key >> 32 & 0xFFFFFFFF,
                sampling_columns.sample[at[some]].long(),
                next_at[some].long(),
            )
            scores = logits[some].float() / temperature[some, None]
            highest = top[some] / temperature[some]
            kinds = torch.where(top_k > 0, top_k, NO_TOP_K)[some], log_min_p[some], top_p[some]
            border = None if is_open[some[0]] else truncate(scores, highest, Limits(*kinds))
            tokens[some] = draw_from_all(scores, highest, tokens[some], keys, border)
        return tokens, failed

    def score(
        self,
        logits: Tensor,
        rows: Tensor,
        tokens: Tensor,
        failed: Tensor,
        out: Tensor,
        step: Tensor,
    ) -> None:
        columns = self.columns
        for line, row in enumerate(rows.tolist()):
            wanted = int(columns.sampling_columns.num_logprobs[row]) if row >= 0 else -1
            if wanted < 0 or failed[line]:
                continue
            values = logits[line : line + 1].float()
            if not columns.scores_as_logits:
                values = log_probabilities(values)
            found = token_logprobs(values, tokens[line : line + 1], wanted)
            floats = torch.from_numpy(np.stack([found.top_logprobs[0], found.top_logprobs[0]], 1))
            pairs = floats.view(torch.int32)
            pairs[:, 0] = torch.from_numpy(found.top_ids[0])
            entry = out[int(step), line]
            entry[0] = torch.from_numpy(found.logprobs).view(torch.int32)[0]
            entry[1] = int(found.ranks[0])
            entry[2 : 2 + 2 * wanted] = pairs.flatten()

    def accept(self, places: DecodePlaces, tokens: Tensor, failed: Tensor) -> None:
        rows = places.rows.long()
        next_at = self.columns.ints[Column.POSITION][rows] + 1
        told = self.columns.accept(rows, tokens, next_at, failed)
        places.made[int(places.step)] = told.int()
        places.step.add_(1)

    def walk(self, edited: Tensor, rows: Tensor, tokens: Tensor, failed: Tensor) -> None:
        edits, (_, about) = self.columns.edits, self.columns.automata.tables
        for line in edited.tolist():
            row = int(rows[line]) if line >= 0 else -1
            state = int(edits.ints[EditColumn.LINE, row]) - edits.first_line if row >= 0 else -1
            if state < 0 or failed[line]:
                continue
            after = self.walked(state, int(tokens[line]))
            if after is None or about[0, after]:
                self.columns.ints[Column.FROZEN, row] = 1
            else:
                edits.ints[EditColumn.LINE, row] = edits.first_line + after

    def walked(self, state: int, token: int) -> int | None:
        """The state behind a token, None where it may not come or is an end token."""
        follows = self.columns.automata.tables[0].numpy()
        offsets, texts, _ = (part.numpy() for part in self.columns.automata.vocabulary)
        text = texts[offsets[token] : offsets[token + 1]].tolist()
        for byte in text:
            state = int(follows[state, byte]) if state >= 0 else state
        return state if text and state >= 0 else None

    def make_lines(self, first: int, count: int) -> None:
        (_, about), edits = self.columns.automata.tables, self.columns.edits
        ends, size = self.columns.automata.vocabulary[2], self.columns.vocab_size
        for state in range(first, first + count):
            _, accepts, only = about[:, state].tolist()
            tokens = [t for t in range(size) if self.walked(state, t) is not None]
            bits = np.zeros(edits.masks.shape[1] * 32, np.uint8)
            bits[tokens if only < 0 else [only]] = 1
            line = torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32))
            edits.masks[edits.first_line + state] = line | ends if accepts and only < 0 else line

    def copy_blocks(self, cache: Tensor, pairs: Tensor) -> None:
        for old, new in pairs.tolist():
            cache[:, :, new] = cache[:, :, old]


@dataclass
class PlainExecutor:
    """A CudaRunner over plain ops, behind the protocol of executors."""

    config: EngineConfig
    spec: ModelSpec
    weights: dict[str, Tensor] | LoadedModule
    rounded: bool = False  # passes over prompts are rounded up as for graphs
    make_kernels: type[RestingKernels] = RestingKernels
    make_ops: type[PlainOps] = PlainOps
    num_states: int = 0  # of grammars that are followed without the host
    sites: AdapterSites | None = None  # made where the config has adapters
    shelf: Shelf | None = None  # with what encodes media

    def __post_init__(self) -> None:
        config, spec, device = self.config, self.spec, torch.device("cpu")
        self.handles = Handles()
        if self.num_states:
            self.handles.automata = AutomatonRoom(self.num_states)
        given = self.weights
        weights: Weights | LoadedModule
        if isinstance(given, LoadedModule):
            weights, dtype = given, next(given.module.parameters()).dtype
        else:
            weights, dtype = dict(given), given["embed.weight"].dtype
        fp8_kv = config.kv_cache_dtype == "fp8"
        shape = head_shape(spec, config.block_size, dtype, fp8_kv=fp8_kv)
        kernels = self.make_kernels(shape)
        if config.adapters is not None:
            self.sites = make_sites(config.adapters, spec, kernels, dtype, device, TensorParallel())
        model = build_any_model(
            spec,
            weights,
            kernels,
            shape,
            max_len=config.max_model_len,
            tp=TensorParallel(),
            adapters=self.sites,
        )
        assert config.num_blocks is not None
        groups, size = groups_of(config, spec), config.block_size
        self.windows, self.tables = windows_of(groups), BlockTables.of(groups)
        model.use_groups(groups)
        cache = make_cache(spec, config.num_blocks, size, shape.kv_dtype, device, groups)
        if fp8_kv:
            cache.view(torch.float32)[..., -config.block_size :] = torch.nan  # the scales
        else:
            cache.fill_(torch.nan)
        columns = self._columns(device)
        sampler = sampler_for(config, spec.vocab_size, device, self.handles)
        self.runner = CudaRunner(
            model,
            cache,
            columns,
            sampler,
            self.make_ops(columns, model.kinds, size, state_tables=model.state_tables),
            handles=self.handles,
            block_size=config.block_size,
            max_repeat=config.max_repeat,
            max_tokens=config.max_num_batched_tokens,
            captured=NOTHING_CAPTURED,
            capture=False,
            groups=groups,
            shelf=self.shelf,
            adapters=self._adapters(device),
        )

        self.runner._prompts.captured = EVERYTHING if self.rounded else NOTHING_CAPTURED

    def _columns(self, device: torch.device) -> DeviceColumns:
        width = -(-self.config.max_model_len // self.config.block_size)
        return DeviceColumns(
            self.config.max_num_seqs,
            width,
            vocab_size=self.spec.vocab_size,
            device=device,
            all_special=bool(self.config.batch_processors),
            logprobs_mode=self.config.logprobs_mode,
            seen=self.tables,
            num_states=self.num_states,
        )

    def _adapters(self, device: torch.device) -> Any:
        rows = row_adapters(self.config, self.sites, self.handles)
        if rows is None or self.config.adapters is None:
            return None
        from quire.executor.cuda.adapters import CudaAdapters

        return CudaAdapters(rows, self.config.adapters.max_loras, device)

    def start(self) -> ExecutorFacts:
        num_blocks = self.config.num_blocks or 0
        return ExecutorFacts(num_blocks, "cpu", self.config.dtype, windows=self.windows)

    def submit(self, plan: StepPlan) -> CudaStep:
        return self.runner.run(plan)

    def reset(self) -> None:
        self.runner.end_all()

    def close(self) -> None:
        self.runner.close()


class Poisoning:
    """Puts NaN into every block that nobody holds, before each plan."""

    def __init__(self, executor: Any, pool: BlockPool) -> None:
        self.inner, self.pool, self.handles = executor, pool, executor.handles

    def start(self) -> ExecutorFacts:
        return self.inner.start()  # type: ignore[no-any-return]

    def submit(self, plan: StepPlan) -> PendingStep:
        runner = getattr(self.inner, "runner", None) or self.inner._runner
        free = torch.from_numpy(np.flatnonzero(self.pool.holders == 0)).to(runner.cache.device)
        with torch.inference_mode():
            runner.cache[:, :, free] = torch.nan
        return self.inner.submit(plan)  # type: ignore[no-any-return]

    def reset(self) -> None:
        self.inner.reset()

    def close(self) -> None:
        self.inner.close()


def answers(
    executor: Executor,
    config: EngineConfig,
    requests: list[Request],
    *,
    prefix_groups: bool = True,
    poisoned: bool = False,
    guide_for: Callable[[Request], Guide | None] = lambda request: None,
    make_masks: MakeMasks | None = None,
    pacing: Pacing | None = None,
    max_adapters: int = 0,
    shelf_rows: int = 0,
    seen: list[Scheduler] | None = None,
) -> list[Sequence]:
    """Every sample of every request, in order, after an engine ran them. `poisoned`: whatever
    nobody holds turns into NaN before each plan. `pacing` as the engine has it, or another. The
    scheduler that did it is added to `seen`."""
    facts, size, caching = executor.start(), config.block_size, not poisoned
    pool = BlockPool(facts.num_blocks, block_size=size, caching=caching, windows=facts.windows)
    if poisoned:
        executor = Poisoning(executor, pool)
    limits = StepLimits(
        config.max_num_seqs,
        config.max_num_batched_tokens,
        max_repeat=config.max_repeat,
        prefix_groups=prefix_groups,
        speculation=config.speculation,
        pacing=pacing or Pacing.in_engine(config),
        max_adapters=max_adapters,
        shelf_rows=shelf_rows,
    )
    hold = (lambda number: None) if max_adapters else None
    scheduler = Scheduler(pool, limits, make_masks=make_masks, hold_adapter=hold)
    engine = Engine(scheduler, executor, depth=config.depth)
    if seen is not None:
        seen.append(scheduler)
    for order, request in enumerate(requests):
        samples = (
            [score_lead(request, order)]
            if request.continuations
            else [
                Sequence(request, i, order, guide=guide_for(request))
                for i in range(request.params.n)
            ]
        )
        engine.add(samples)
    ended: list[Sequence] = []
    while not engine.idle:
        ended += engine.step().ended
    assert pool.num_free == pool.num_blocks
    return sorted(ended, key=lambda sequence: (sequence.order, sequence.sample))
