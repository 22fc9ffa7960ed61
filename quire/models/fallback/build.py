"""Makes a Model of a loaded module, in the fastest way that comes out right in a trial."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from quire.backends.ops import HeadShape, Kernels
from quire.base.boundary import reason
from quire.base.notes import note
from quire.errors import UnsupportedModel
from quire.layers.adapted import AdapterSites
from quire.models.fallback.capturing import why_not_captured
from quire.models.fallback.loaded import LoadedModule, products_of
from quire.models.fallback.model import TransformersModel
from quire.models.fallback.planning import WAY_OUT
from quire.models.fallback.sequences import WAYS_TO_JOIN
from quire.models.fallback.trial import bound_for, trial


@torch.inference_mode()
def build_fallback(
    loaded: LoadedModule, kernels: Kernels, shape: HeadShape, adapters: AdapterSites | None = None
) -> TransformersModel:
    """All sequences side by side in one call if the results are those of Transformers, else a
    sequence at a time. With slots for LoRA adapters if `adapters` is given."""
    name, seen = type(loaded.module).__name__, loaded.seen
    why = why_one_by_one(loaded, kernels, shape)
    if not why:
        made = (loaded.module, loaded.call, seen, kernels, shape)
        model = TransformersModel(*made, try_capturing=why_not_captured)
        if adapters is not None:
            add_slots(loaded.module, adapters)
        return model
    if adapters is not None:
        raise UnsupportedModel(
            f"{name} takes no adapters: {why}, and adapters need sequences side by side. Merge the "
            "adapter into its base, and load that."
        )
    if loaded.expected:
        raise UnsupportedModel(
            f"{name} is not run on several ranks: {why}. Run replicas of the whole model: "
            "data_parallel_size."
        )
    model, failed = _one_by_one(loaded, why, kernels, shape)
    if failed:
        way_out = f" {WAY_OUT}" if seen.attending and not loaded.whole_texts else ""
        raise UnsupportedModel(f"{name} cannot be run in chunks: {failed}.{way_out}")
    said = model.seen.why_rows
    if model.seen.is_whole:
        note(f"{name} computes every text anew for each of its tokens, which is very slow: {said}")
    elif model.joins.starts:
        note(f"{name} computes sequences filled up to one length, which is slower: {said}")
    elif model.joins.nexts:
        note(f"{name} computes a prompt at a time, which is slower: {said}")
    else:
        note(f"{name} computes a sequence at a time, which is much slower: {said}")
    return model


@torch.inference_mode()
def why_one_by_one(loaded: LoadedModule, kernels: Kernels, shape: HeadShape) -> str:
    """Why its sequences are not computed side by side; empty if they are."""
    if loaded.is_tried or not loaded.seen.calls:
        return loaded.seen.why_rows
    model = TransformersModel(loaded.module, loaded.call, loaded.seen, kernels, shape)
    why = _why_not(model, shape, loaded.expected)
    if not why and model.needs_lengths and next(loaded.module.parameters()).is_cuda:
        return "its attention has sinks, or softcaps that differ by layer"
    return why


def _one_by_one(
    loaded: LoadedModule, why: str, kernels: Kernels, shape: HeadShape
) -> tuple[TransformersModel, str]:
    """The best way of computing a sequence at a time that comes out right, and ""; or, if none
    does, the last way and why it fails."""
    seen = replace(loaded.seen, calls=(), why_rows=why)
    hows = [(seen, True)]  # each with whether states take chunks of several tokens
    if seen.stateful:
        slow = f"{why}, and takes up one token at a time behind the first block of a text"
        hows.append((replace(seen, why_rows=slow), False))
    if seen.attending and loaded.whole_texts:
        # The blocks of the first layer with keys and values will hold token ids.
        whole = replace(seen, kept=(), states=(), why_rows="in chunks its logits are others")
        hows.append((whole, True))
    for (how, chunks), joins in itertools.product(hows, WAYS_TO_JOIN):
        model = TransformersModel(
            *(loaded.module, loaded.call, how, kernels, shape), takes_up_chunks=chunks, joins=joins
        )
        failed = _why_not(model, shape)
        if not failed:
            break
    return model, failed


def add_slots(module: nn.Module, adapters: AdapterSites) -> None:
    """Give all linear parts of a module slots for adapters."""
    for product in products_of(module):
        part: Any = module.get_submodule(product.name)
        part.register_forward_hook(_hook(adapters.after(product.name, part.bias)))


def _hook(add: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def hook(part: nn.Module, given: tuple[Tensor], made: Tensor) -> Tensor:
        x = given[0]
        return add(x.reshape(-1, x.shape[-1]), made.view(-1, made.shape[-1])).view(made.shape)

    return hook


def _why_not(model: TransformersModel, shape: HeadShape, known: Sequence[Tensor] = ()) -> str:
    """Why the model cannot be run this way; empty if it can."""
    try:
        found = trial(model, shape, known)
    except Exception as error:  # code of the class, on a path that the dry pass did not take
        return f"its pass fails: {reason(error)}"
    if found <= bound_for(shape.dtype):
        return ""
    return (
        f"in chunks its logits differ from those of one plain call, by {found:.1%} of the largest"
    )
