"""DeviceOps in Triton: feed and accept of a decode step, its attention and its sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from quire.backends.ops import AttentionStep, HeadShape, StateStep
from quire.backends.triton.blocks import copy_blocks
from quire.backends.triton.decode import DecodeAttention, DecodeBuffers
from quire.backends.triton.latent import decode_attention, parts_shape
from quire.backends.triton.prefix import PrefixSize, PrefixWork
from quire.backends.triton.sample import SampleBuffers, SamplingColumns, sample
from quire.backends.triton.steady import SteadyBuffers, SteadyDecode
from quire.backends.triton.steps import Fed, accept, feed
from quire.backends.triton.tiles import steady_tiles
from quire.errors import NotSupported
from quire.executor.cuda.device_ops import Feed
from quire.executor.cuda.device_rows import DeviceColumns, aligned_lines
from quire.executor.cuda.graphs import DecodePlaces, GuessPlaces
from quire.executor.cuda.planned_decode import PlannedDecode
from quire.layers.attention import Kind
from quire.request import Ints
from quire.step import PrefixGroup

if TYPE_CHECKING:
    from quire.backends.triton.automata import States
    from quire.backends.triton.edit import EditBuffers


class TritonOps:
    """The kernels that a decode step needs beside the model's, with their buffers.

    Those of rarely used features are imported when a row needs them, as importing a kernel takes a
    noticeable part of a start.
    """

    def __init__(
        self,
        columns: DeviceColumns,
        kinds: frozenset[Kind],
        block_size: int,
        *,
        state_tables: frozenset[int] = frozenset(),
        max_rows: int | None = None,
        steady: bool = False,
    ) -> None:
        """`state_tables`: block tables of layers that keep states; `steady`: attention gives a row
        the same bits in any batch."""
        if any(kind.chunk is not None for kind in kinds):
            raise NotSupported("layers that see their own chunk alone are not built for a GPU.")
        self._columns, self._block_size, self._steady = columns, block_size, steady
        self._kinds = sorted(kinds, key=lambda kind: kind.table)
        self._state_tables = state_tables
        sampling_columns, rows = columns.sampling_columns, max_rows or columns.num_rows
        self._sampling = SamplingColumns(
            temperature=sampling_columns.temperature,
            top_k=sampling_columns.top_k,
            log_min_p=sampling_columns.log_min_p,
            top_p=sampling_columns.top_p,
            noise_key=sampling_columns.noise_key,
            sample=sampling_columns.sample,
        )
        shapes = dict.fromkeys(kind.shape for kind in self._kinds)
        self._buffers = {shape: self._made_for(shape, rows) for shape in shapes}
        self._drawn = SampleBuffers(rows, columns.vocab_size, columns.device)
        self._beside: SampleBuffers | None = None
        self._editing: EditBuffers | None = None
        self._fed: dict[int, Fed] = {}
        self._starts: dict[int, Tensor] = {}  # 0, 1, 2 ...: each place has one token
        # One for each table without a window: all its layers have the same heads.
        self._work: dict[int, dict[int, PrefixWork]] = {}
        self._listed: dict[int, tuple[tuple[PrefixGroup, ...], bytes]] = {}
        # By number of places, window, heads, and for shared prefixes their size and the table.
        self._attention: dict[
            tuple[int, int | None, HeadShape, tuple[PrefixSize, int] | None],
            DecodeAttention | SteadyDecode,
        ] = {}

    def _made_for(self, shape: HeadShape, rows: int) -> DecodeBuffers | SteadyBuffers:
        columns = self._columns
        if self._steady:
            longest = columns.tables.shape[2] * self._block_size
            return SteadyBuffers.make(shape, rows, longest, columns.device)
        parts = 0 if shape.values_in_keys else PrefixSize.of(shape, rows).parts
        return DecodeBuffers.make(parts_shape(shape), rows, columns.device, prefix_parts=parts)

    @property
    def _full(self) -> dict[int, HeadShape]:
        """The heads of layers that see everything, by their block tables."""
        count = self._columns.seen.num_full
        return {kind.table: kind.shape for kind in self._kinds if kind.table < count}

    def list_prefixes(
        self, num_places: int, groups: tuple[PrefixGroup, ...], members: list[Ints]
    ) -> PrefixSize | None:
        full = self._full
        if not groups or not full or next(iter(full.values())).values_in_keys:  # see latent.py
            return None
        works, seen = self._work.get(num_places), self._columns.seen
        if works is None:
            made = {table: self._new_work(shape, num_places) for table, shape in full.items()}
            works = self._work[num_places] = made
        seats = b"".join(some.tobytes() for some in members)
        last = self._listed.get(num_places)
        # The scheduler passes the same tuple until its groups change.
        if last is None or last[0] is not groups or last[1] != seats:
            in_tables = [seen.seen(g.blocks, full=True).reshape(seen.num_full, -1) for g in groups]
            for table, work in works.items():
                blocks = [lines[table] for lines in in_tables]
                work.fill(list(zip(blocks, members, strict=True)))
            self._listed[num_places] = groups, seats
        return next(iter(works.values())).size

    def _new_work(self, shape: HeadShape, num_places: int) -> PrefixWork:
        device = self._columns.device
        if not self._steady:
            return PrefixWork(shape, num_places, device, PrefixSize.of(shape, num_places))
        from quire.backends.triton.steady_prefix import SteadyPrefixWork, steady_size

        size, tile = steady_size(shape, num_places), steady_tiles(shape)[1]
        return SteadyPrefixWork(shape, num_places, device, size, tile=tile)

    def feed(self, places: DecodePlaces, prefixes: PrefixSize | None) -> Feed:
        fed, columns = self._fed_of(places.size), self._columns
        feed(columns.ints, places.rows, columns.tables, fed, block_size=self._block_size)
        return self._planned(fed, places.rows, prefixes)

    def feed_guesses(
        self, places: GuessPlaces, shortest: int, longest: int, prefixes: PrefixSize | None
    ) -> Feed:
        from quire.backends.triton.guess_steps import History, LookUp, feed_guesses

        fed, columns = self._fed_of(places.num_lines), self._columns
        feed_guesses(
            *(columns.ints, places.rows, columns.tables),
            History(places.histories, places.lengths),
            LookUp(places.count, shortest, longest),
            *(fed, places.line_rows),
            block_size=self._block_size,
        )
        return self._planned(fed, places.line_rows, prefixes, alone=False)

    def _planned(
        self, fed: Fed, rows: Tensor, prefixes: PrefixSize | None, *, alone: bool = True
    ) -> Feed:
        """The Feed with the step's attention, planned with the tables of `rows`."""
        columns, num_places = self._columns, len(rows)
        planned: dict[Kind, AttentionStep] = {}
        made: set[int] = set()
        for kind in self._kinds:
            table, num_full = kind.table, columns.seen.num_full
            # Only layers without a window share prefixes.
            work = self._work[num_places][table] if prefixes and table < num_full else None
            attention = self._attention_of(num_places, kind, work)
            tables, own_slots = columns.tables[table], fed.slots[table]
            if id(attention) not in made:  # tables with one window share the list of items
                made.add(id(attention))
                attention.plan(fed.context_lens, tables, rows)
            planned[kind] = PlannedDecode(attention, own_slots, tables, alone)
        slots = fed.slots.unbind()
        given = (fed.token_ids, fed.positions, slots, fed.rows, fed.next_at)
        return Feed(*given, planned, self._states(rows, fed))

    def _states(self, rows: Tensor, fed: Fed) -> dict[int, StateStep]:
        num_places = len(rows)
        if not self._state_tables:
            return {}
        from quire.backends.triton.states import TritonStates

        if num_places not in self._starts:
            with torch.inference_mode(False):
                made = torch.arange(num_places + 1, dtype=torch.int32, device=self._columns.device)
            self._starts[num_places] = made
        given, size = (self._starts[num_places], fed.context_lens), self._block_size
        return {
            table: TritonStates(*given, self._columns.tables[table], size, rows)
            for table in self._state_tables
        }

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
        out, count = self._drawn, logits.shape[0]
        given = (logits, rows, next_at, self._sampling, out)
        if edited is None:
            sample(*given, truncated=truncated)
        else:
            from quire.backends.triton.edit import RowEdits, sample_edited

            mine, ints = self._columns.edits, self._columns.ints if ahead else None
            lists = (mine.ints, mine.penalties, mine.words, mine.masks)
            edits, room = RowEdits(*lists, ints), self._edit_buffers()
            sample_edited(*given, truncated=truncated, places=edited, edits=edits, room=room)
        return out.tokens[:count], out.failed[:count]

    def draw_beside(
        self, logits: Tensor, rows: Tensor, next_at: Tensor, *, truncated: bool
    ) -> tuple[Tensor, Tensor]:
        columns, count = self._columns, logits.shape[0]
        if self._beside is None:
            with torch.inference_mode(False):
                given = (columns.num_rows, columns.vocab_size, columns.device)
                self._beside = SampleBuffers(*given)
        out = self._beside
        sample(logits, rows, next_at, self._sampling, out, truncated=truncated)
        return out.tokens[:count], out.failed[:count]

    def score(
        self,
        logits: Tensor,
        rows: Tensor,
        tokens: Tensor,
        failed: Tensor,
        out: Tensor,
        step: Tensor,
    ) -> None:
        from quire.backends.triton.score import score

        wanted = self._columns.sampling_columns.num_logprobs
        given = (logits, rows, tokens, failed, wanted, out, step, self._drawn)
        score(*given, as_logits=self._columns.scores_as_logits)

    def accept(self, places: DecodePlaces, tokens: Tensor, failed: Tensor) -> None:
        accept(self._columns.ints, places.rows, tokens, failed, places.made, places.step)

    def walk(self, edited: Tensor, rows: Tensor, tokens: Tensor, failed: Tensor) -> None:
        from quire.backends.triton.automata import walk_states

        columns, edits = self._columns, self._columns.edits
        drawn = (edited, rows, tokens, failed)
        walk_states(self._automata(), *drawn, edits.ints, columns.ints, edits.first_line)

    def make_lines(self, first: int, count: int) -> None:
        from quire.backends.triton.automata import make_state_lines

        edits = self._columns.edits
        make_state_lines(self._automata(), edits.masks, edits.first_line, first, count)

    def _automata(self) -> States:
        from quire.backends.triton.automata import States

        automata = self._columns.automata
        return States(*automata.tables, *automata.vocabulary)

    def accept_guesses(
        self, places: GuessPlaces, fed: Feed, tokens: Tensor, failed: Tensor
    ) -> None:
        from quire.backends.triton.guess_steps import History, accept_guesses

        accept_guesses(
            *(self._columns.ints, places.rows, History(places.histories, places.lengths)),
            *(fed.token_ids, fed.rows, tokens, failed, places.made, places.step),
        )

    def copy_blocks(self, cache: Tensor, pairs: Tensor) -> None:
        copy_blocks(cache, pairs.to(torch.int32))

    def _edit_buffers(self) -> EditBuffers:
        """Allocated when a row needs them."""
        if self._editing is None:
            from quire.backends.triton.edit import EditBuffers

            columns = self._columns
            with torch.inference_mode(False):
                lines = len(self._drawn.tokens)
                self._editing = EditBuffers(columns.vocab_size, lines, columns.device)
        return self._editing

    def _fed_of(self, num_places: int) -> Fed:
        if num_places not in self._fed:
            # Six allocations, not slices of one, so that each is aligned as kernels want it.
            types, device = [torch.int64] * 2 + [torch.int32] * 3, self._columns.device
            with torch.inference_mode(False):
                ids, positions, *others = (
                    torch.zeros(num_places, dtype=t, device=device) for t in types
                )
                shape = (len(self._columns.tables), num_places)
                slots = aligned_lines(*shape, torch.int64, device)
                self._fed[num_places] = Fed(ids, positions, slots, *others)
        return self._fed[num_places]

    def _attention_of(
        self, num_places: int, kind: Kind, work: PrefixWork | None
    ) -> DecodeAttention | SteadyDecode:
        shared = None if work is None else (work.size, kind.table)
        key, buffers = (num_places, kind.window, kind.shape, shared), self._buffers[kind.shape]
        if key not in self._attention:
            with torch.inference_mode(False):
                if isinstance(buffers, SteadyBuffers):
                    self._attention[key] = SteadyDecode(
                        *(kind.shape, buffers, num_places),
                        window=kind.window,
                        prefixes=cast(Any, work),
                    )
                else:
                    self._attention[key] = decode_attention(
                        kind.shape, buffers, num_places, window=kind.window, prefixes=work
                    )
        return self._attention[key]
