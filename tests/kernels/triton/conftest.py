"""Without a CUDA device the kernels run in Triton's interpreter, which must be told before they
are imported."""

from __future__ import annotations

import os
from typing import Any

import torch


def _mend_interpreter() -> None:
    """Triton 3.6 makes an int of an array with one element, which numpy >= 2.4 refuses."""
    from triton.runtime import interpreter

    patch: Any = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    _mend_interpreter()
