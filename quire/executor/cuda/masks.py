"""Sends the masks of guided rows to the device, while it computes the pass they belong to.

Only the draw needs a mask, so the host may still fill a plan's masks when the pass begins. They are
copied from pinned memory on a stream of their own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from quire.executor.cuda.device_edits import DeviceEdits
from quire.executor.cuda.upload import Upload
from quire.step import Masks, no_ints
from quire.steps.handles import Handles


def pinned_masks(num_rows: int, num_words: int) -> npt.NDArray[np.uint32]:
    """Pinned memory for masks, from which a device can copy by itself."""
    shape = (num_rows, num_words)
    room = torch.empty(shape, dtype=torch.int32, device="cpu", pin_memory=True)
    found: npt.NDArray[np.uint32] = room.numpy().view(np.uint32)
    return found


class MaskUploads:
    """Writes the masks of plans to the lines of their rows."""

    def __init__(self, edits: DeviceEdits, device: torch.device, handles: Handles) -> None:
        self._edits, self._device, self._handles = edits, device, handles
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def pack(self, masks: Masks | None, upload: Upload) -> MaskUpload:
        """Before the upload is sent."""
        upload.add("masked rows", no_ints() if masks is None else masks.rows)
        return MaskUpload(self, masks, upload)

    def lift(self, upload: Upload) -> None:
        """Allow all tokens from here on."""
        self._edits.lift_masks(upload.take("masked rows"))

    def send(self, masks: Masks, upload: Upload) -> None:
        """Wait until the masks are filled, and copy them for later work on the stream."""
        self._handles.wait_for(masks)
        lines = torch.from_numpy(masks.bits.view(np.int32))
        if self._stream is None:
            self._edits.set_masks(upload.take("masked rows"), lines)
            return
        current = torch.cuda.current_stream()
        with torch.cuda.stream(self._stream):
            sent = lines.to(self._device, non_blocking=True)
        current.wait_stream(self._stream)
        sent.record_stream(current)
        self._edits.set_masks(upload.take("masked rows"), sent)


class MaskUpload:
    """The masks of one plan, sent by a call before the first draw. They are lifted for the steps
    that rows try without masks (`StepPlan.tried`)."""

    def __init__(self, uploads: MaskUploads, masks: Masks | None, upload: Upload) -> None:
        self._uploads, self._masks, self._upload = uploads, masks, upload
        self._has_some = masks is not None

    def __call__(self) -> None:
        masks, self._masks = self._masks, None
        if masks is not None:
            self._uploads.send(masks, self._upload)

    def lift(self) -> None:
        """Allow all tokens; called after the first step."""
        if self._has_some:
            self._uploads.lift(self._upload)
