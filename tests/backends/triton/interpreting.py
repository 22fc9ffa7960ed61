"""Triton's interpreter, in less time: what it finds out about types is found out once.

Nothing that it computes changes: numpy is given the same arrays. Most of the time of a small kernel
went into comparing shapes and types, at every operation of every program.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, cast


def hasten_interpreter() -> None:
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
    _share_ways_to_meet()
    _call_plainly(interpreter)


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


class _Way(NamedTuple):
    """What becomes of one side of an operation when it meets the other."""

    constant: Any = None  # of a number: its tensor
    element: Any = None  # what it is cast to
    block: Any = None  # what it grows to
    shape: tuple[int, ...] = ()
    is_scalar: bool = False

    @classmethod
    def seen(cls, before: Any, after: Any) -> _Way | None:
        """None where nothing becomes of it."""
        if after is before:
            return None
        if not hasattr(before, "handle"):
            after.handle.data.flags.writeable = False  # many will read it
            return cls(constant=after)
        element = None if after.type.scalar == before.type.scalar else after.type.scalar
        if after.type.is_block() and before.type.name != after.type.name:
            shape = after.handle.data.shape
            return cls(None, element, after.type, shape, not before.type.is_block())
        return cls(None, element)

    def take(self, semantic: Any, side: Any) -> Any:
        if self.constant is not None:
            return self.constant
        if self.element is not None:
            side = semantic.cast(side, self.element)
        if self.block is None:
            return side
        builder, handle = semantic.builder, side.handle
        if self.is_scalar:
            handle = builder.create_splat(self.block, handle)
        elif handle.data.shape != self.shape:
            handle = builder.create_broadcast(handle, self.shape)
        return semantic.tensor(handle, self.block)


def _share_ways_to_meet() -> None:
    """How two sides of an operation meet depends on their types, and on a number's value."""
    from triton.language.core import tensor
    from triton.language.semantic import TritonSemantic

    check: Any = TritonSemantic.binary_op_type_checking_impl
    broadcast: Any = TritonSemantic.broadcast_impl_value
    ways: dict[tuple[Any, ...], tuple[_Way | None, _Way | None]] = {}

    def meet(key: Any, how: Any, semantic: Any, lhs: Any, rhs: Any, given: Any, named: Any) -> Any:
        if key in ways:
            left, right = ways[key]
            lhs = lhs if left is None else left.take(semantic, lhs)
            return lhs, rhs if right is None else right.take(semantic, rhs)
        sides = how(semantic, lhs, rhs, *given, **named)
        ways[key] = _Way.seen(lhs, sides[0]), _Way.seen(rhs, sides[1])
        return sides

    def checked(semantic: Any, lhs: Any, rhs: Any, *given: bool, **named: bool) -> Any:
        left = lhs.type.name if type(lhs) is tensor else (type(lhs), lhs)
        right = rhs.type.name if type(rhs) is tensor else (type(rhs), rhs)
        key = (left, right, given, *named.items())
        return meet(key, check, semantic, lhs, rhs, given, named)

    def broadcasted(semantic: Any, lhs: Any, rhs: Any) -> Any:
        key = (lhs.type.name, rhs.type.name)
        return meet(key, broadcast, semantic, lhs, rhs, (), {})

    types: Any = TritonSemantic
    types.binary_op_type_checking_impl, types.broadcast_impl_value = checked, broadcasted


def _call_plainly(interpreter: Any) -> None:
    """What a kernel calls is called without two functions around it that look whether it is called
    in a kernel; tensors and numbers are seen at once to be no constants in a shell."""
    from triton.language import core

    def patched(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        semantic = interpreter.TritonSemantic(builder)
        plain = getattr(member, "__wrapped__", member)

        def called(*given: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return plain(*given, **named)

        scope.set_attr(obj, name, called)

    unwrap: Any = cast(Any, core)._unwrap_if_constexpr

    plain_kinds = frozenset({core.tensor, core.dtype, int, float, bool, str, type(None)})

    def unwrapped(given: Any) -> Any:
        return given if type(given) in plain_kinds else unwrap(given)

    interpreter._patch_attr = patched
    cast(Any, core)._unwrap_if_constexpr = unwrapped
