"""Hidden states that slices ask for, on a GPU, without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quire.executor.cuda.host_copies import HostCopies, HostCopy
from quire.executor.cuda.upload import Upload
from quire.executor.hidden import Longs, Wanted
from quire.step import Floats, Slice

_FIELDS = ("tokens", "summed", "lengths")


@dataclass(frozen=True, slots=True)
class HiddenCopy:
    """Hidden states that are being copied to the host."""

    wanted: Wanted
    host_copy: HostCopy

    def read(self) -> dict[int, Floats]:
        rows: Any = self.host_copy.read()
        return self.wanted.split(rows)


def pack_hidden(prefill: Sequence[Slice], query_starts: Longs, upload: Upload) -> Wanted | None:
    """Called before the upload is sent."""
    wanted = Wanted.of(prefill, query_starts)
    if wanted is not None:
        for name in _FIELDS:
            upload.add(f"hidden {name}", getattr(wanted, name))
    return wanted


def send_hidden(
    wanted: Wanted | None, upload: Upload, hidden: Tensor, host_copies: HostCopies
) -> list[HiddenCopy]:
    """Called after the layers of the pass."""
    if wanted is None:
        return []
    fields = (upload.take(f"hidden {name}") for name in _FIELDS)
    return [HiddenCopy(wanted, host_copies.send(wanted.of_pass(hidden, *fields)))]
