"""The media of rows on the device: offsets of positions, and the sounds they attend to."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.backends.ops import AttentionInputs, Kernels
from quire.executor.cuda.device_ops import Feed
from quire.executor.cuda.upload import Upload
from quire.executor.sound_pages import NO_SOUND, SoundPages
from quire.layers.cross import HeardPages
from quire.step import StepPlan


class RowMedia:
    """Two columns, each only if the model needs it. The idle row has neither."""

    def __init__(
        self, num_rows: int, device: torch.device, *, has_axes: bool, pages: SoundPages | None
    ) -> None:
        """`has_axes`: positions have three coordinates. `pages`: the sounds, None without
        cross-attention."""
        self._pages = pages

        def column(value: int) -> Tensor:
            return torch.full((num_rows,), value, dtype=torch.int64, device=device)

        self._deltas = column(0) if has_axes else None
        self._places = None if pages is None else column(NO_SOUND)

    def pack(self, plan: StepPlan, upload: Upload) -> None:
        """Add the media of started rows to the upload; `change` applies them."""
        if self._deltas is not None:
            upload.add("deltas", [start.delta for start in plan.starts])
        if self._pages is not None:
            upload.add("sounds", [self._pages.place_of(start.heard) for start in plan.starts])

    def change(self, upload: Upload) -> None:
        started = upload.take("starts")
        if self._deltas is not None:
            self._deltas.index_copy_(0, started, upload.take("deltas"))
        if self._places is not None:
            self._places.index_copy_(0, started, upload.take("sounds"))

    def turned_at(self, fed: Feed) -> Tensor:
        """The positions for rope in a decode step."""
        if self._deltas is None:
            return fed.positions
        added = self._deltas.index_select(0, fed.rows.clamp(min=0))
        return (fed.positions + added).clamp_(min=0)  # the idle row may have any position

    def heard(self, kernels: Kernels, rows: Tensor) -> HeardPages | None:
        """The sounds of a pass, token i being of rows[i] (-1: no row). For attention each token is
        a row of its own, as it sees the whole sound."""
        if self._pages is None or self._places is None:
            return None
        places = self._places.index_select(0, rows.clamp(min=0))
        hears = (rows >= 0) & (places >= 0)
        inputs = AttentionInputs(
            query_starts=torch.arange(len(rows) + 1, device=rows.device),
            context_lens=torch.where(hears, self._pages.num_rows, 0),
            tables=self._pages.tables.index_select(0, places.clamp_(min=0)),
            slots=places,  # nothing is stored
            num_prefill=0,
        )
        return HeardPages(kernels.plan_attention(inputs, None), self._pages.pages)
