"""The state of every row on the device, as columns.

A row's last token, its position, how much it has written, when it must stop and how it draws: with
these a step needs no data from the host. Changes are sent in a plan's upload.

There is one more row than asked for, which is always idle; unused places of a bucket point to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.executor.cuda.automata import DeviceAutomata
from quire.executor.cuda.device_edits import DeviceEdits, fits_edits, has_edits
from quire.executor.cuda.upload import Upload
from quire.executor.row_columns import RowColumns
from quire.layers.kv_groups import ONE_TABLE, BlockTables
from quire.params.row_sampling import RowSampling
from quire.request import Ints
from quire.step import Assigned, RowStart
from quire.steps.row_schema import NOWHERE, Column, row_ints

GREEDY_BELOW = 1e-5  # below this the likeliest token is taken
MOST_TOP = 20  # most likeliest tokens in a logprob entry


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """How each row draws. Off: temperature 0 (greedy), top_k 0, top_p 1, log_min_p -inf."""

    temperature: Tensor  # float32 [rows]
    top_k: Tensor  # int32
    top_p: Tensor  # float64
    log_min_p: Tensor  # float32
    noise_key: Tensor  # int64, the bits of the unsigned key
    sample: Tensor  # int32
    num_logprobs: Tensor  # int32; -1: none from the device

    def columns(self) -> tuple[Tensor, ...]:
        return (
            self.temperature,
            self.top_k,
            self.top_p,
            self.log_min_p,
            self.noise_key,
            self.sample,
            self.num_logprobs,
        )


@dataclass(frozen=True, slots=True)
class MoreAsked:
    """Logprobs that do not fit into an entry: of num_top likeliest tokens (-1: all), or of ids."""

    num_top: int
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawing:
    """What a set of rows needs of sampling; known on the host."""

    truncated: bool  # a row has top_k, top_p or min_p
    scored: bool  # a row wants logprobs from the device


class DeviceColumns(RowColumns):
    """The state of `num_rows` rows and their block tables.

    ints [NUM_COLUMNS, num_rows + 1] int64; tables [tables, num_rows + 1, table_width] int32.
    """

    def __init__(
        self,
        num_rows: int,
        table_width: int,
        *,
        vocab_size: int,
        device: torch.device,
        all_special: bool = False,
        logprobs_mode: str = "raw_logprobs",
        seen: BlockTables = ONE_TABLE,
        num_states: int = 0,
    ) -> None:
        """`all_special`: all rows need the sampler. `seen`: what each block table is of.
        `num_states`: room for states of grammars."""

        def column(dtype: torch.dtype) -> Tensor:
            return torch.zeros(num_rows + 1, dtype=dtype, device=device)

        self.device, self.num_rows, self.vocab_size = device, num_rows, vocab_size
        self.resting = num_rows  # the idle row
        super().__init__(num_rows + 1, device)
        self.sampling_columns = SamplingColumns(
            temperature=column(torch.float32),
            top_k=column(torch.int32),
            top_p=column(torch.float64),
            log_min_p=column(torch.float32),
            noise_key=column(torch.int64),
            sample=column(torch.int32),
            num_logprobs=column(torch.int32),
        )
        self.seen = seen
        shape = (len(seen), num_rows + 1, table_width)
        self.tables = torch.full(shape, NOWHERE, dtype=torch.int32, device=device)
        # Rows for which the sampler draws, and rows whose next token is planned only after the host
        # has the last one.
        self.special = np.zeros(num_rows + 1, np.bool_)
        self.waits_for_host = np.zeros(num_rows + 1, np.bool_)
        self.all_special = all_special
        self.truncated = np.zeros(num_rows + 1, np.bool_)
        # As on the device: the number of logprobs, -1 for none.
        self.num_logprobs = np.full(num_rows + 1, NOWHERE, np.int32)
        # Rows whose logprobs do not fit into entries (more_scores.py), and their number or ids.
        self.asks_more = np.zeros(num_rows + 1, np.bool_)
        self.more_asked: dict[int, MoreAsked] = {}
        self.edits = DeviceEdits(num_rows, vocab_size, device, num_states)
        self.automata = DeviceAutomata(num_states, vocab_size, device)
        self._scores_raw = logprobs_mode.startswith("raw_")
        self.scores_as_logits = logprobs_mode.endswith("_logits")
        self.clear()

    def clear(self) -> None:
        """Make all rows idle."""
        self.rest_all()
        self.tables.fill_(NOWHERE)
        self.edits.clear()

    def drawing(self, rows: Ints) -> Drawing:
        return Drawing(
            bool(self.truncated[rows].any()),
            bool((self.num_logprobs[rows] >= 0).any()),
        )

    def pack(
        self, upload: Upload, ends: Ints, starts: Sequence[RowStart], assigned: Assigned
    ) -> None:
        """Add a plan's changes to an upload; `change` applies them."""
        self.edits.end(ends)
        for start in starts:
            self._note(start)
        self.edits.pack(upload, starts)
        upload.add("ends", ends)
        upload.add("starts", [start.row for start in starts])
        upload.add("start ints", np.array([row_ints(start) for start in starts], np.int64).T)
        for i, numbers in enumerate(zip(*(self._sampling_columns(s) for s in starts), strict=True)):
            upload.add(f"knob {i}", np.array(numbers))
        upload.add("assigned rows", assigned.rows)
        upload.add("assigned indices", assigned.indices)
        upload.add("assigned blocks", self.seen.seen(assigned.blocks))

    def _note(self, start: RowStart) -> None:
        """Note on the host which kernels the row needs."""
        row, num_logprobs = start.row, start.sampling.num_logprobs
        self.edits.end(np.array([row], np.int32))
        special = self.all_special or needs_sampler(start, scores_raw=self._scores_raw)
        tries = not self.all_special and _tries_edited(start.sampling)
        if has_edits(start) and (not special or tries):
            special = not self.edits.begin(start) or special
        self.special[row], self.waits_for_host[row] = special, start.waits_for_host
        self.truncated[row] = self._truncates(start.sampling)
        asks = not special and num_logprobs is not None
        more = self.asks_more[row] = asks and not _fits_entry(start.sampling)
        if more:
            named = start.sampling.logprob_ids
            ids = () if named is None else tuple(named.tolist())
            self.more_asked[row] = MoreAsked(num_logprobs or 0, ids)
        in_entry = asks and not more
        self.num_logprobs[row] = min(num_logprobs or 0, self.vocab_size) if in_entry else NOWHERE

    def change(self, upload: Upload) -> None:
        """Apply ends, then starts, then assigned blocks."""
        ends, starts = upload.take("ends"), upload.take("starts")
        if len(ends):
            self.ints[Column.FROZEN].index_fill_(0, ends, 1)
            self.tables.index_fill_(1, ends, NOWHERE)
        if len(starts):
            self.ints.index_copy_(1, starts, upload.take("start ints").view(-1, len(starts)))
            for i, column in enumerate(self.sampling_columns.columns()):
                column.index_copy_(0, starts, upload.take(f"knob {i}").to(column.dtype))
        self.edits.change(upload)
        blocks = upload.take("assigned blocks")
        if len(blocks):
            at = (upload.take("assigned rows"), upload.take("assigned indices"))
            self.tables[:, *at] = blocks.to(torch.int32).view(len(self.tables), -1)

    def draw_some(self, rows: Tensor, counts: Tensor) -> None:
        """Unfreeze these rows for `counts` more tokens."""
        num_outputs = self.ints[Column.NUM_OUTPUTS].index_select(0, rows)
        self.ints[Column.MAX_TOKENS].index_copy_(0, rows, num_outputs + counts)
        self.ints[Column.FROZEN].index_fill_(0, rows, 0)

    def go_on_from(self, rows: Tensor, drawn: Tensor) -> None:
        """Set the last tokens of these rows to drawn[0] at positions drawn[1], in place of what
        they drew and how far they went on from that."""
        further = drawn[1] - self.ints[Column.POSITION].index_select(0, rows)
        self.ints[Column.NUM_OUTPUTS].index_add_(0, rows, further)
        self.ints[Column.LAST_TOKEN].index_copy_(0, rows, drawn[0])
        self.ints[Column.POSITION].index_copy_(0, rows, drawn[1])

    def _sampling_columns(self, start: RowStart) -> tuple[float, int, float, float, int, int, int]:
        """A row's values, in the order of SamplingColumns."""
        params, key = start.sampling, start.noise_key & (2**64 - 1)
        return (
            params.temperature if params.temperature >= GREEDY_BELOW else 0.0,
            params.top_k if 0 < params.top_k < self.vocab_size else 0,
            params.top_p,
            math.log(params.min_p) if params.min_p > 0 else -math.inf,
            key - 2**64 if key >= 2**63 else key,
            start.sample,
            int(self.num_logprobs[start.row]),
        )

    def _truncates(self, params: RowSampling) -> bool:
        top_k = 0 < params.top_k < self.vocab_size
        limited = top_k or params.top_p < 1 or params.min_p > 0
        return params.temperature >= GREEDY_BELOW and limited


def aligned_lines(count: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros [count, width], each line aligned to 16 bytes, as kernels want it."""
    each = 16 // dtype.itemsize
    return torch.zeros(count, -(-width // each) * each, dtype=dtype, device=device)[:, :width]


def needs_sampler(start: RowStart, *, scores_raw: bool = True) -> bool:
    """Whether a row needs more than the device's own sampling, which has temperature, top_k, top_p,
    min_p, edits and masks (device_edits.py), and logprobs of raw logits."""
    sampling = start.sampling
    return (
        not fits_edits(sampling)
        or not (sampling.num_logprobs is None or scores_raw)
        or start.has_processors
    )


def _tries_edited(sampling: RowSampling) -> bool:
    """Whether a row for which the sampler draws may go on with the device's tokens and edits: only
    edits that depend neither on earlier tokens, which may be taken back, nor on a mask."""
    return fits_edits(sampling) and not (sampling.has_penalties or sampling.guided)


def _fits_entry(sampling: RowSampling) -> bool:
    """Whether a row's logprobs fit into an entry."""
    return 0 <= (sampling.num_logprobs or 0) <= MOST_TOP and sampling.logprob_ids is None
