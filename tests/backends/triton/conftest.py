"""Without a CUDA device the kernels run in Triton's interpreter, which must be told before they
are imported."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from typing import Any, cast

import numpy as np
import torch


def _mend_interpreter() -> None:
    """Triton 3.6 makes an int of an array with one element, which numpy >= 2.4 refuses, and when
    it rounds to fp8 it forgets to carry: 31.7 becomes 16."""
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


def _hasten_interpreter() -> None:
    """Triton puts the interpreter's functions into its language at every launch, and again at every
    call of a function inside one: most of the time of small kernels. Once for each module that
    code names is enough, since here nothing is compiled."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch: Any = interpreter._patch_lang
    scopes: dict[tuple[bool, bool], Any] = {}

    @cache
    def patched_once(code: Any) -> Any:
        named = list(map(id, code.__globals__.values()))
        modules = id(tl) in named, id(tl.core) in named
        if modules not in scopes:
            scopes[modules] = patch(code)
            scopes[modules].restore = lambda: None
        return scopes[modules]

    interpreter._patch_lang = patched_once
    # Each sum of ints is computed again in 64 bits for an assertion that only debugging makes.
    builder: Any = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)
    _share_types(interpreter)


def _share_types(interpreter: Any) -> None:
    """The type of a block and what a tensor has of its type are never changed, and to make them
    takes longer than numpy's part of an operation: once for each element and shape is enough."""
    from triton.language import core

    block_type, tensor = cast(Any, core.block_type), cast(Any, core.tensor)
    make_type, make_tensor = block_type.__init__, tensor.__init__
    np_dtype = interpreter._get_np_dtype
    types: dict[tuple[Any, ...], dict[str, Any]] = {}
    facts: dict[str, tuple[Any, ...]] = {}  # by the name of a type, which says all of it
    np_dtypes: dict[str, Any] = {}

    def made_type(self: Any, element_ty: Any, shape: Any) -> None:
        values = getattr(shape, "values", shape)  # of Triton's tuples, which are slow to walk
        key = (element_ty.name, *(getattr(one, "value", one) for one in values))
        if key not in types:
            make_type(self, element_ty, shape)
            types[key] = dict(vars(self))
        else:
            vars(self).update(types[key])

    def made_tensor(self: Any, handle: Any, type: Any) -> None:
        found = facts.get(type.name)
        if found is None:
            make_tensor(self, handle, type)
            facts[type.name] = self.numel, self.dtype, self.shape
        else:
            self.handle, self.type = handle, type
            self.numel, self.dtype, self.shape = found

    def named_dtype(of: Any) -> Any:
        if of.name not in np_dtypes:
            np_dtypes[of.name] = np_dtype(of)
        return np_dtypes[of.name]

    block_type.__init__, tensor.__init__ = made_type, made_tensor
    interpreter._get_np_dtype = named_dtype


if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    _mend_interpreter()
    _hasten_interpreter()
