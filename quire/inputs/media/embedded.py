"""Images that callers encoded themselves: rows of numbers in torch tensors, used in place of the
encoder's output. A caller with a tensor has imported torch, so this module need not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.errors import InvalidPrompt
from quire.request import Arrays

ROWS, GRIDS = "image_embeds", "image_grid_thw"
Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddedImage:
    """Rows [n, width] of one image; `grid`: (time, height, width), for positions of three axes."""

    rows: Rows
    content: bytes
    grid: tuple[int, int, int] | None = None

    def arrays(self) -> Arrays:
        return {"rows": self.rows}

    def encoded(self) -> None:
        """The rows are kept after use, because nothing could make them again."""


def is_tensor(value: object) -> bool:
    return any(f"{k.__module__}.{k.__name__}" == "torch.Tensor" for k in type(value).__mro__)


def are_embeddings(value: object) -> bool:
    """Whether this is what scripts for vLLM pass for encoded images."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return len(value) > 0 and is_tensor(value[0])
    return is_tensor(value) or (isinstance(value, Mapping) and "bytes" not in value)


def read_embedded(value: Any, *, allowed: bool) -> list[EmbeddedImage]:
    """Read one tensor [rows, width], or several in a list or as [images, rows, width], or a mapping
    with the rows of all images as `image_embeds` and their grids as `image_grid_thw`."""
    if not allowed:
        raise _bad(
            "is a tensor of torch, or a dictionary, which scripts for vLLM pass for embeddings; "
            "pass pixels as a numpy array of bytes, [height, width, 3], or, where those who write "
            "prompts are trusted, let embeddings in with enable_mm_embeds=True"
        )
    if isinstance(value, Mapping):
        return _with_grids(value)
    if is_tensor(value):
        value = list(value) if value.ndim == 3 else [value]
    return [_image(_numbers(one)) for one in value]


def _with_grids(value: Mapping[Any, Any]) -> list[EmbeddedImage]:
    if set(value) != {ROWS, GRIDS}:
        raise _bad(f"is a dictionary of {sorted(map(str, value))[:5]}; it has {ROWS} and {GRIDS}")
    given = value[ROWS]
    parts = list(given) if isinstance(given, Sequence) or given.ndim == 3 else [given]
    rows = np.concatenate([_numbers(part) for part in parts])
    grids = [tuple(map(int, grid)) for grid in np.asarray(value[GRIDS]).reshape(-1, 3).tolist()]
    patches = [time * high * wide for time, high, wide in grids]
    merge = isqrt(sum(patches) // len(rows))
    if min(patches, default=0) < 1 or merge < 1 or sum(patches) != len(rows) * merge**2:
        raise _bad(f"has {len(rows)} rows, which is not what {GRIDS} says: {grids[:5]}")
    ends = np.cumsum([each // merge**2 for each in patches])[:-1].tolist()
    return [
        _image(part, (time, high // merge, wide // merge))
        for part, (time, high, wide) in zip(np.split(rows, ends), grids, strict=True)
    ]


def _image(rows: Rows, grid: tuple[int, int, int] | None = None) -> EmbeddedImage:
    about = f"embedded {rows.shape} {grid}".encode()
    made = hashlib.blake2b(len(about).to_bytes(8, "little") + about, digest_size=32)
    made.update(rows.tobytes())
    return EmbeddedImage(rows, made.digest(), grid)


def _numbers(tensor: Any) -> Rows:
    """A float32 copy of a tensor [rows, width], because the caller may change the original."""
    if not is_tensor(tensor):
        raise _bad(f"is a {type(tensor).__name__} among tensors; all of them are tensors of torch")
    if str(tensor.layout) != "torch.strided" or tensor.ndim != 2 or not tensor.numel():
        raise _bad(
            f"is a tensor of shape {tuple(tensor.shape)} and layout {tensor.layout}; embeddings "
            "are [rows, width], strided, with one row at least"
        )
    rows = np.array(tensor.detach().cpu().float().numpy(), np.float32)
    if not np.isfinite(rows).all():
        raise _bad("has embeddings that are not finite")
    return rows


def _bad(why: str) -> InvalidPrompt:
    return InvalidPrompt(f"the image {why}", parameter="multi_modal_data")
