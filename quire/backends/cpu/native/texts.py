"""Attention of encoders in C: each text by itself, without copies but of its keys and values. Torch
takes longer to arrange a batch of short texts than to compute it; for long texts it is faster."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.backends.cpu.native.header import struct
from quire.backends.texts import Groups, Sight, attend_texts

Longs = npt.NDArray[np.int64]
LONGEST = 64  # tokens of a text; torch is as fast from about twice as many on
_Texts = struct("quire_texts")


class NativeTexts:
    """Attention within texts, the shortest first. Texts that are long, not float32 or with gains
    are left to torch: by a text's own length, so that its bits depend on no other text."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.scratch = torch.empty(0)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, groups: Groups, sight: Sight) -> Tensor:
        wide = q.dtype == torch.float32 and sight.gains is None
        short = tuple(one for one in groups if wide and one[1] <= LONGEST)
        if not short:
            return attend_texts(q, k, v, groups, sight)
        counts, lengths = np.array(short, np.int64).T
        starts = np.concatenate([[0], np.cumsum(np.repeat(lengths, counts))])
        out, end = q.new_empty(len(q), q.shape[1] * q.shape[2]), int(starts[-1])
        self._attend(_together(q), _together(k), _together(v), starts, sight, out)
        out[end:] = attend_texts(q[end:], k[end:], v[end:], groups[len(short) :], sight)
        return out

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, starts: Longs, sight: Sight, out: Tensor
    ) -> None:
        """Compute the texts between these starts into `out`."""
        work = _Texts(
            num_heads=q.shape[1],
            num_kv_heads=k.shape[1],
            head_dim=q.shape[2],
            q_stride=q.stride(0),
            k_stride=k.stride(0),
            v_stride=v.stride(0),
            window=-1 if sight.window is None else sight.window,
            scale=sight.scale,
            num_texts=len(starts) - 1,
            starts=starts.ctypes.data,
            q=q.data_ptr(),
            k=k.data_ptr(),
            v=v.data_ptr(),
            slopes=None if sight.slopes is None else sight.slopes.data_ptr(),
            out=out.data_ptr(),
        )
        work.room = self.library.quire_texts_room(work)
        wanted = work.room * self.library.quire_num_threads()
        if self.scratch.numel() < wanted:
            self.scratch = torch.empty(wanted)
        work.scratch = self.scratch.data_ptr()
        self.library.quire_attend_texts(work)


def _together(heads: Tensor) -> Tensor:
    """[T, heads, D] with the heads of a token contiguous in memory."""
    together = heads.stride(2) == 1 and heads.stride(1) == heads.shape[2]
    return heads if together else heads.contiguous()
