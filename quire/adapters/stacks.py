"""LoRA for tensors with the weights of all experts (`target_parameters` of PEFT). No torch.

PEFT wraps the module once for each of its tensors, so `mlp.experts.lora_A` and
`mlp.experts.base_layer.lora_A` are for two of them; shapes tell which. Until 0.20 it exchanged the
sides of some weights, which shapes also tell, unless both sides are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.adapters.changes import Change, Stacked
from quire.adapters.config import MERGE
from quire.adapters.matching import Matcher
from quire.adapters.names import Kind, TensorName
from quire.adapters.sites import SitePart
from quire.errors import InvalidAdapter
from quire.weights.formats import StoredTensor

_WRAPPED = ".base_layer"
_SIDES_KNOWN = (0, 21)  # the first PEFT that never exchanges the sides
Stack = Mapping[str, tuple[SitePart, ...]]
Pair = tuple[TensorName, StoredTensor, StoredTensor]


def module_of(name: TensorName) -> str:
    """The wrapped module, without its wrappers."""
    module = name.own
    while module.endswith(_WRAPPED):
        module = module.removesuffix(_WRAPPED)
    return module


def stack_of(matcher: Matcher, name: TensorName) -> Stack | None:
    """The tensors of a module with all experts; None for any other module."""
    for module in (module_of(name), f"model.{module_of(name)}"):
        if module in matcher.sites.stacks:
            return matcher.sites.stacks[module]
    return None


def stacked_changes(
    matcher: Matcher, given: Sequence[tuple[TensorName, Mapping[Kind, StoredTensor]]]
) -> list[Change]:
    """The changes of an adapter to the experts of one module."""
    stack, pairs = stack_of(matcher, given[0][0]) or {}, []
    if matcher.config.less_columns:
        raise matcher.wrong(
            given[0][0].module, "has init_lora_weights='olora' for experts: not built", MERGE
        )
    for name, found in given:
        matcher.check_kinds(name, found, frozenset({"A", "B"}))
        pairs.append((name, found["A"], found["B"]))
    changes: dict[str, list[Change]] = {}
    for name, a, b in pairs:
        tensor, swapped = _tensor_of(matcher, stack, (name, a, b), pairs)
        if tensor in changes:
            raise matcher.wrong(name.module, f"changes {tensor} twice")
        changes[tensor] = _changes(matcher, stack[tensor], (name, a, b), tensor, swapped)
    return [one for some in changes.values() for one in some]


def _changes(
    matcher: Matcher, parts: tuple[SitePart, ...], pair: Pair, tensor: str, swapped: bool
) -> list[Change]:
    name, a, b = pair
    stacked = Stacked(_count(parts), swapped)
    rank = a.shape[0] // stacked.experts
    if rank * stacked.experts != a.shape[0] or b.shape[1] != a.shape[0] or not rank:
        raise matcher.other_shape(b, (b.shape[0], a.shape[0]))
    matcher.check_rank(a, rank)
    path = f"{name.module.removesuffix(_WRAPPED)}.{tensor}"
    scale = matcher.config.scale(path, rank)
    return [Change(part, rank, scale, a, b, stacked=stacked) for part in parts]


def _tensor_of(matcher: Matcher, stack: Stack, pair: Pair, pairs: list[Pair]) -> tuple[str, bool]:
    """The tensor for which A and B are, and whether its sides were exchanged."""
    fits = _fits(stack, pair)
    if not fits:
        raise _fits_nothing(matcher, stack, pair)
    if len({swapped for _, swapped in fits}) == 1:
        return fits[0]
    sides = [{swapped for _, swapped in _fits(stack, other)} for other in pairs]
    known = next((one for one in sides if len(one) == 1), None)  # a module has one kind
    if known is None and matcher.config.version >= _SIDES_KNOWN:
        known = {False}
    for tensor, swapped in fits:
        if known is not None and swapped in known:
            return tensor, swapped
    raise matcher.wrong(
        pair[0].module,
        "has two equal sides, and PEFT before 0.21 took one for the other in some models",
        "Load it with PEFT 0.21 or later and save it again.",
    )


def _fits(stack: Stack, pair: Pair) -> list[tuple[str, bool]]:
    _, a, b = pair
    if len(a.shape) != 2 or len(b.shape) != 2:
        return []
    given, found = (a.shape[1], b.shape[0]), []
    for tensor, (part, *_) in stack.items():
        sides = (part.columns, part.within.of or part.rows)
        found += [(tensor, False)] if given == sides else []
        found += [(tensor, True)] if given == sides[::-1] else []
    return found


def _count(parts: tuple[SitePart, ...]) -> int:
    return 1 + max(part.expert or 0 for part in parts)


def _fits_nothing(matcher: Matcher, stack: Stack, pair: Pair) -> InvalidAdapter:
    part = next(iter(stack.values()))[0]
    return matcher.other_shape(pair[1], (pair[1].shape[0], part.columns))
