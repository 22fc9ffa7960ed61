"""Makes feed-forwards and experts from named weights."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from quire.backends.linear import Gate
from quire.backends.ops import RowOp
from quire.errors import UnsupportedModel
from quire.layer_plan import Activation, ExpertsPlan, MlpPlan
from quire.layers.experts import Experts, Router, ScoredInputs, SharedExpert
from quire.layers.linear import Linear
from quire.layers.mlp import Cutoff, GatedMLP, LearnedCurve, PlainMLP
from quire.models.layers import Mlp
from quire.models.weight_parts import WeightParts

# Whether these activations are those of feed-forwards with a gate.
_OF_ONE_KIND = {"clamped_silu": True, "xielu": False}


def feed_forward(parts: WeightParts, name: str, plan: MlpPlan | ExpertsPlan) -> Mlp:
    return experts(parts, name, plan) if isinstance(plan, ExpertsPlan) else dense(parts, name, plan)


def experts(parts: WeightParts, name: str, plan: ExpertsPlan) -> Experts:
    hidden, kernels, one = parts.spec.hidden_size, parts.kernels, plan.expert
    if one.activation == "xielu":
        raise UnsupportedModel(f"{name}: {one.activation} in experts.")
    if one.gate_scale != 1.0 or one.sparse is not None or one.inner_norm is not None:
        raise UnsupportedModel(f"{name}: experts with a scaled gate, a cutoff or a norm inside.")
    make, each, first = parts.bare_linear, f"{name}.experts", first_of(one)
    pairs = [
        (
            make(f"{each}.{i}.{first}", (1 + one.gated) * one.width, hidden, bias=one.bias),
            make(f"{each}.{i}.down", hidden, one.width, bias=one.bias),
        )
        for i in range(plan.count)
    ]
    ups, downs = ([pair[side].multiply for pair in pairs] for side in (0, 1))
    shared = None
    if plan.shared is not None:
        gated = plan.shared_gate
        gate = parts.linear(f"{name}.shared_gate", 1, hidden, bias=False) if gated else None
        mlp = dense(parts, f"{name}.shared", plan.shared)
        shared = SharedExpert(mlp, gate, plan.shared_factor)
    opened = kernels.gate(one.activation) if one.gated else kernels.activate(one.activation)
    op = kernels.make_experts(opened, ups, downs)
    if parts.adapters is not None:
        if plan.scores_inputs and plan.per_token > 1:
            raise UnsupportedModel("LoRA adapters beside experts that read scored inputs.")
        op = parts.adapters.experts(each, op, pairs)
    if plan.scores_inputs:
        op = ScoredInputs(op)
    return Experts(_router(parts, name, plan), op, pairs[0], shared, parts.tp)


def _router(parts: WeightParts, name: str, plan: ExpertsPlan) -> Router:
    """The kernels make its product, so that the choice does not depend on the batch."""
    hidden, biased = parts.spec.hidden_size, plan.router_bias
    product = parts.linear(f"{name}.router", plan.count, hidden, bias=biased)
    choice = parts.tensor(f"{name}.choice.bias", plan.count) if plan.choice_bias else None
    norm = None
    if plan.router_norm is not None:
        norm = parts.norm(f"{name}.router_norm", plan.router_norm, hidden)
    factors = parts.tensor(f"{name}.factors.weight", plan.count) if plan.has_factors else None
    return Router(product, parts.kernels.make_choice(plan, choice), norm, factors)


def first_of(plan: MlpPlan) -> str:
    """The name of its first product."""
    return "gate_up" if plan.gated else "up"


def dense(parts: WeightParts, name: str, plan: MlpPlan) -> GatedMLP | PlainMLP:
    hidden, inner, bias, kernels = parts.spec.hidden_size, plan.width, plan.bias, parts.kernels
    if plan.activation in _OF_ONE_KIND and plan.gated != _OF_ONE_KIND[plan.activation]:
        kind = "with" if plan.gated else "without"
        raise UnsupportedModel(f"{name}: {plan.activation} {kind} a gate.")
    first = first_of(plan)
    up = parts.linear(f"{name}.{first}", (1 + plan.gated) * inner, hidden, bias=bias)
    down = parts.linear(f"{name}.down", hidden, inner, bias=bias)
    norm = parts.inner_norm(f"{name}.inner_norm", plan.inner_norm, inner)
    if plan.gated and (plan.gate_scale != 1.0 or plan.sparse is not None):
        return GatedMLP(_behind(_scaled(parts, plan, up), norm), up, down, parts.tp)
    if plan.sparse is not None:
        raise UnsupportedModel(f"{name}: a cutoff without a gate.")
    if plan.gated:
        opened = _opened(parts, f"{name}.gate_up", plan.activation, up)
        return GatedMLP(_behind(opened, norm), up, down, parts.tp)
    if plan.activation == "xielu":
        curve = LearnedCurve(parts.tensor(f"{name}.curve.weight", 4))
        return PlainMLP(_behind(curve, norm), up, down, parts.tp)
    activate = kernels.activate(plan.activation)
    return PlainMLP(_behind(activate, norm), up, down, parts.tp)


def _behind(op: RowOp, norm: RowOp | None) -> RowOp:
    """The op, followed by a norm if there is one."""
    return op if norm is None else lambda x: norm(op(x))


def _scaled(parts: WeightParts, plan: MlpPlan, product: Linear) -> RowOp:
    """The product followed by activation(gate_scale * gate) * up, of gates behind their cutoff if
    there is one."""
    opened = parts.kernels.gate(plan.activation)
    cutoff = None if plan.sparse is None else Cutoff(plan.sparse, parts.tp)

    def scaled(x: Tensor) -> Tensor:
        made = product(x)
        gates = made[:, : plan.width]
        if cutoff is not None:
            cutoff.apply(gates)
        if plan.gate_scale != 1.0:
            gates *= plan.gate_scale
        return opened(made)

    return scaled


def _opened(parts: WeightParts, name: str, activation: Activation, product: Linear) -> RowOp:
    """The product followed by activation(gate) * up, with slots for LoRA adapters if it may have
    some."""
    behind = partial(parts.kernels.gated, activation)
    if parts.adapters is None:
        return behind(product.multiply)
    gate = Gate(activation, parts.kernels.gate(activation), behind)
    return parts.adapters.behind_gate(name, gate, product.multiply)
