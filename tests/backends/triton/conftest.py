"""Without a CUDA device the kernels run in Triton's interpreter, which must be told before they
are imported."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from tests.backends.triton.interpreting import hasten_interpreter


def _mend_interpreter() -> None:
    """Triton 3.6 makes an int of an array with one element, which numpy >= 2.4 refuses, when it
    rounds to fp8 it forgets to carry (31.7 becomes 16), and it multiplies the bits of bfloat16 as
    if they were whole numbers."""
    from triton.runtime import interpreter

    convert: Any = interpreter._convert_float

    def converted(given: Any, of: Any, to: Any, rounding_mode: Any) -> Any:
        if str(of) != "fp32" or str(to) != "fp8e4nv":
            return convert(given, of, to, rounding_mode)
        wide = torch.from_numpy(np.ascontiguousarray(given).view(np.float32))
        return wide.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    interpreter._convert_float = converted
    patch: Any = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
    builder: Any = interpreter.InterpreterBuilder
    multiply = builder.create_dot

    def multiplied(self: Any, a: Any, b: Any, *more: Any) -> Any:
        return multiply(self, _widened(a), _widened(b), *more)

    def _widened(given: Any) -> Any:
        if str(given.dtype.scalar) != "bf16":
            return given
        wide = (given.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(wide, interpreter.tl.float32)

    builder.create_dot = multiplied


if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    _mend_interpreter()
    hasten_interpreter()
