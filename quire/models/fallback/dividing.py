"""The share of one rank of a Transformers model, by the plan that the model's class declares.

The plan names products whose rows are divided, and products whose columns are, which need a sum
over ranks. All shares are equal, so that heads stay whole: the number of KV heads must be divisible
by the number of ranks. Styles that quire has not built are refused. The trial (trial.py) checks
that the shares add up to the model, against logits of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quire.errors import InvalidOption, NotSupported
from quire.layers.tp import TensorParallel
from quire.ranks.shares import OPTION

_NUMBER = re.compile(r"\.\d+(?=\.|$)")
# Parts that every rank has whole. Some of the names are about gradients, which quire does not make.
WHOLE = ("replicate", "replicated_with_grad_allreduce", "embedding_rowwise", "embedding_colwise")
ROWS, COLUMNS, JOINED = "colwise", "rowwise", "colwise_gather_output"


@dataclass(frozen=True, slots=True)
class DryExchange:
    """Takes the place of the other ranks in the dry pass, where the model has no numbers."""

    size: int

    def sum(self, part: Tensor) -> Tensor:
        return part

    def gather(self, part: Tensor) -> Sequence[Tensor]:
        return [part] * self.size


def divide(module: nn.Module, tp: TensorParallel) -> None:
    """Cut each product that the plan names to this rank's share, and add up or join results where
    the model needs them whole."""
    for name, part, style in _planned(module):
        if style in WHOLE:
            continue
        if not isinstance(part, nn.Linear) or style not in (ROWS, COLUMNS, JOINED):
            kind = type(part).__name__
            raise NotSupported(
                f"{OPTION}={tp.size}: {type(module).__name__} plans {name}, a {kind}, as "
                f"{style!r}, which is not built. Run replicas of the whole model: "
                "data_parallel_size."
            )
        if style == JOINED and part.out_features % tp.size:
            continue  # stays whole on every rank, which gives the same result
        _divide(part, name, style, tp)


def _planned(module: nn.Module) -> Iterator[tuple[str, nn.Module | Tensor, str]]:
    """All parts that the plan of a class names, each with its style."""
    plan: dict[str, str] = getattr(module, "_tp_plan", None) or {}
    found = [
        (name, part, plan[pattern])
        for name, part in (*module.named_modules(), *module.named_parameters())
        if (pattern := _NUMBER.sub(".*", name)) in plan
    ]
    if all(style in (*WHOLE, JOINED) for _, _, style in found):  # the plan divides nothing
        raise NotSupported(
            f"{type(module).__name__} declares no plan for several ranks, and {OPTION} of models "
            "that Transformers computes goes by that. Run replicas of the whole model: "
            "data_parallel_size."
        )
    yield from found


def _divide(part: nn.Linear, name: str, style: str, tp: TensorParallel) -> None:
    count = part.in_features if style == COLUMNS else part.out_features
    if count % tp.size:
        raise InvalidOption(
            f"{OPTION}={tp.size} does not divide the {count} "
            f"{'columns' if style == COLUMNS else 'rows'} of {name}. Use a divisor of {count}.",
            parameter=OPTION,
            value=tp.size,
        )
    own = slice(count // tp.size * tp.share.rank, count // tp.size * (tp.share.rank + 1))
    bias = part.bias
    if style == COLUMNS:
        _set(part, "weight", part.weight[:, own])
        if bias is not None and tp.share.rank:  # only rank 0 adds the bias
            _set(part, "bias", torch.zeros_like(bias))
        part.in_features = count // tp.size
        part.register_forward_hook(lambda _, given, made: tp.all_reduce(made))
        return
    _set(part, "weight", part.weight[own])
    if bias is not None:
        _set(part, "bias", bias[own])
    part.out_features = count // tp.size
    if style == JOINED:
        part.register_forward_hook(lambda _, given, made: tp.all_gather(made, count))


def _set(part: nn.Linear, name: str, values: Tensor) -> None:
    """Set a copy: so the whole weight can be freed, and a tied weight is not changed."""
    setattr(part, name, nn.Parameter(values.detach().clone(), requires_grad=False))
