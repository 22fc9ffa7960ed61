"""A module of Transformers with the weights of a directory, or with random ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from quire.base.boundary import refusing
from quire.base.notes import note
from quire.errors import CorruptModel, UnsupportedModel
from quire.families.unread import parts_left_out
from quire.layers.tp import TensorParallel
from quire.models.fallback.dividing import divide
from quire.models.fallback.planning import FallbackPlan
from quire.models.fallback.trial import plain, trial_texts


def load_module(
    plan: FallbackPlan,
    directory: Path,
    *,
    dtype: torch.dtype,
    tensors: dict[str, Tensor] | None = None,
) -> nn.Module:
    """Load the weights with Transformers, which knows how each class's weights are renamed, joined
    and tied: from files, or from `tensors` by their names in the files. Only safetensors are read,
    because pickles run code. A missing weight is an error."""
    failed = f"{directory}: its weights cannot be read"
    with refusing(lambda why: CorruptModel(f"{failed}: {why}")), _quiet():
        module, about = _class(plan).from_pretrained(
            str(directory) if tensors is None else None,
            config=plan.found.config,
            state_dict=tensors,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, by name
        )
    unneeded = _draw_unneeded(module, plan, {*map(str, about["missing_keys"])})
    for key, what in (("missing_keys", "is missing"), ("mismatched_keys", "has another shape")):
        if names := sorted({str(name) for name in about[key]} - unneeded):
            raise CorruptModel(f"{directory}: the weight {names[0]!r} {what} ({len(names)} in all)")
    unused = sorted(n for n in about["unexpected_keys"] if not _is_empty_bias(n, tensors or {}))
    if left_out := parts_left_out(unused, module.state_dict()):
        raise UnsupportedModel(
            f"{directory}: {plan.found.name} has no part for {left_out[0]!r} ({len(left_out)} such "
            "tensors). It is another model than its config says."
        )
    if plan.found.headless:  # its own head is read apart
        unused = [name for name in unused if name.startswith(f"{module.base_model_prefix}.")]
    if unused:
        note(f"{len(unused)} tensors of the model's files are not used: {', '.join(unused[:3])}")
    if tensors is not None and any(isinstance(part, Conv1D) for part in module.modules()):
        raise UnsupportedModel(
            f"{directory}: {plan.found.name} keeps weights [in, out], which quire reads as plain "
            "numbers alone. Take the original weights."
        )
    made: nn.Module = module.eval()
    return made


@torch.inference_mode()
def _draw_unneeded(module: Any, plan: FallbackPlan, missing: set[str]) -> set[str]:
    """The names among those `missing` that are outside of the layers, where the model has another
    head or none. They get small random numbers, because the trial compares logits: large ones that
    happen to be in memory would hide what the layers do."""
    stored, prefix = module.state_dict(), f"{module.base_model_prefix}."
    if not plan.found.headless or not any(name.startswith(prefix) for name in stored):
        return set()
    made = torch.Generator().manual_seed(0)
    unneeded = {name for name in missing if not name.startswith(prefix)}
    for name in sorted(unneeded):
        weight = stored[name]
        weight.copy_(torch.randn(weight.shape, generator=made) * weight.shape[-1] ** -0.5)
    return unneeded


def _is_empty_bias(name: str, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a tensor is a bias of zeros, as tools write beside every quantised weight."""
    return name.endswith(".bias") and name in tensors and not bool(tensors[name].any())


def dummy_module(plan: FallbackPlan, *, dtype: torch.dtype, seed: int) -> nn.Module:
    """Random weights, the same for the same seed."""
    with torch.random.fork_rng(devices=[]), _quiet():
        torch.manual_seed(seed)
        made: nn.Module = _class(plan)._from_config(plan.found.config, dtype=dtype).eval()
    return made


@torch.inference_mode()
def part_of_rank(
    module: nn.Module, plan: FallbackPlan, tp: TensorParallel, block_size: int
) -> tuple[Tensor, ...]:
    """Cut a module to one rank's share. Returns the whole's logits for the trial's texts."""
    texts = trial_texts(plan.seen, module, block_size)
    expected = tuple(plain(module, text) for text in texts)
    divide(module, tp)
    return expected


def _class(plan: FallbackPlan) -> Any:
    """The class, untyped: Transformers' own types are too narrow."""
    return plan.found.made_by


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Transformers' messages and progress bars; quire prints its own."""
    logging: Any = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
