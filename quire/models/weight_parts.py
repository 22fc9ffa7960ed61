"""Takes weights out of a dict, and makes products and norms of them: what every part of a layer is
made with."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.backends.linear import WeightRows
from quire.backends.ops import HeadShape, Kernels, RowNorm, RowOp
from quire.errors import CorruptModel, UnsupportedModel
from quire.layer_plan import AttentionPlan, NormPlan
from quire.layers.adapted import AdapterSites
from quire.layers.heads import DividedNorm
from quire.layers.linear import Linear, Matrix, PlainRows
from quire.layers.norm import LayerNorm, Norm, RMSNorm
from quire.layers.tp import TensorParallel
from quire.spec import ModelSpec

# Where each weight of a built decoder is, by quire's name of it. With this a model can be given
# other weights, or leave its device, without building anything again.
Places = dict[str, tuple[WeightRows, ...]]
Weights = dict[str, Tensor] | dict[str, Matrix]


class WeightParts:
    """Takes weights out of a dict, checks their shapes, and makes the parts of layers from them."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        kernels: Kernels,
        shape: HeadShape,
        tp: TensorParallel,
        adapters: AdapterSites | None = None,
    ) -> None:
        """`shape`: the heads of the first layer. `adapters`: gives products slots for LoRA
        adapters; None if the model has no slots."""
        self.spec, self.weights, self.kernels = spec, weights, kernels
        self.shape, self.tp, self.adapters = shape, tp, adapters
        self.device = next(iter(weights.values())).device
        self.places: Places = {}  # of all weights that were taken so far

    def shape_of(self, plan: AttentionPlan) -> HeadShape:
        model = self.shape
        return HeadShape.of(plan, model.block_size, model.dtype, fp8_kv=model.fp8_kv)

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A weight that stays a plain tensor."""
        weight = self.matrix(name, *shape)
        if not isinstance(weight, Tensor):
            raise CorruptModel(f"the weight {name!r} is a packed matrix, not plain numbers.")
        self.places[name] = (PlainRows(weight),)
        return weight

    def matrix(self, name: str, *shape: int) -> Matrix:
        weight = self.weights.pop(name, None)
        if weight is None:
            raise CorruptModel(f"the weight {name!r} is missing.")
        if tuple(weight.shape) != shape:
            raise CorruptModel(
                f"the weight {name!r} has shape {list(weight.shape)}, not {list(shape)}."
            )
        return weight

    def linear(self, name: str, rows: int, columns: int, *, bias: bool) -> Linear:
        return self.adapted(name, self.bare_linear(name, rows, columns, bias=bias))

    def bare_linear(self, name: str, rows: int, columns: int, *, bias: bool) -> Linear:
        """A product without slots."""
        weight = self.matrix(f"{name}.weight", rows, columns)
        made = Linear(self.kernels, weight, self.tensor(f"{name}.bias", rows) if bias else None)
        self.places[f"{name}.weight"] = (made,)
        return made

    def adapted(self, name: str, made: Linear) -> Linear:
        """The product, with slots for LoRA adapters if it may have some."""
        if self.adapters is not None:
            made.multiply = self.adapters.around(name, made.multiply, made.bias)
        return made

    def norm_weight(self, name: str, plan: NormPlan, size: int) -> Tensor:
        if plan.learned:
            return self.tensor(f"{name}.weight", size)
        kind = torch.float32 if plan.is_wide else self.shape.dtype
        return torch.ones(size, dtype=kind, device=self.device)

    def norm(self, name: str, plan: NormPlan, size: int) -> Norm:
        weight = self.norm_weight(name, plan, size)
        bias = self.tensor(f"{name}.bias", size) if plan.learned and plan.bias else None
        if bias is not None and plan.kind != "layer":
            raise UnsupportedModel(f"{name}: an RMSNorm with a bias.")
        made: RMSNorm | LayerNorm = RMSNorm(self.kernels, weight, plan.eps)
        if plan.kind == "layer":
            made = LayerNorm(self.kernels, weight, bias, plan.eps)
        return made if self.adapters is None else self.adapters.around_norm(name, made)

    def layer_norm(self, index: int, name: str) -> Norm:
        """A norm of the stream, or of what is added to it, in layer `index`."""
        plan = self.spec.layers[index].norm
        return self.norm(f"layers.{index}.{name}", plan, self.spec.hidden_size)

    def inner_norm(self, name: str, plan: NormPlan | None, size: int) -> RowOp | None:
        """A norm of what a last product reads, of which ranks have `size` numbers each."""
        if plan is None or self.tp.size == 1:
            return None if plan is None else self.norm(name, plan, size)
        if plan.kind != "rms":
            raise UnsupportedModel(f"{name}: a LayerNorm of numbers that ranks divide.")
        return DividedNorm(self.norm_weight(name, plan, size), plan.eps, self.tp)

    def row_norm(self, name: str, plan: NormPlan, size: int) -> RowNorm:
        if plan.kind != "rms" or plan.bias:
            raise UnsupportedModel(f"{name}: a norm of kept rows that is no plain RMSNorm.")
        return RowNorm(self.tensor(f"{name}.weight", size), plan.eps)
