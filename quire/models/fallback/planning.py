"""Makes the ModelSpec of a model that Transformers computes, with which the engine plans."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from quire.base.boundary import reason, refusing
from quire.errors import QuireError, UnsupportedModel
from quire.families.fields import Fields
from quire.layer_parts.state import DeltaNetPlan
from quire.layer_plan import AttentionPlan, LayerPlan, MlpPlan, NormPlan
from quire.layers.tp import TensorParallel
from quire.models.fallback.body import BodyCall
from quire.models.fallback.classes import CausalClass
from quire.models.fallback.dividing import DryExchange, divide
from quire.models.fallback.loaded import Product, products_of
from quire.models.fallback.recording import record, record_whole
from quire.models.fallback.seen import Seen
from quire.ranks.shares import ALONE, RankShare
from quire.spec import ModelSpec

FAMILY = "transformers"
WAY_OUT = (
    "model_impl='transformers' runs it all the same, if slowly: every text is computed anew for "
    "each of its tokens."
)
# Head sizes are rounded up to this, because kernels read vectors.
HEAD_MULTIPLE = 8
UNSAID_LENGTH = 2048
UNUSED_EPS = 1e-6  # the module computes its own norms
_LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "max_target_positions"),
    *("max_sequence_length", "seq_length"),
)
# Ropes whose frequencies change when a text is longer than the named length, and then for all
# sequences of the pass or the cache.
_CHANGING_ROPES = {
    "longrope": "original_max_position_embeddings",
    "dynamic": "max_position_embeddings",
}
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class FallbackPlan:
    """How a model will be run, known before a weight is read."""

    found: CausalClass
    seen: Seen
    call: BodyCall
    num_weights: int
    spec: ModelSpec
    products: tuple[Product, ...]
    whole_texts: bool


def plan_fallback(
    found: CausalClass, source: str, *, whole_texts: bool, share: RankShare = ALONE
) -> FallbackPlan:
    """Make the model without weights, call it once, and record what it needs. `whole_texts`: a
    model that quire's cache cannot serve may compute every text anew for each of its tokens.
    `share`: one rank's part, whose needs are recorded."""
    if getattr(found.text_config, "use_bidirectional_attention", None) in (True, "all"):
        raise UnsupportedModel(
            f"{found.name}: use_bidirectional_attention: its tokens attend to those behind them."
        )
    refused = lambda why: UnsupportedModel(f"{found.name}: Transformers cannot make it: {why}")  # noqa: E731
    with refusing(refused), torch.device("meta"):
        module: nn.Module = found.made_by(found.config)
    module.train(False)
    if share.size > 1:
        divide(module, TensorParallel(share, DryExchange(share.size)))
    num_weights = sum(p.numel() for p in module.parameters())
    try:
        seen, call = _on_meta_or_zeros(module, found.name, record)
        if found.made_by._is_stateful and not seen.stateful and None in seen.kept:
            raise UnsupportedModel(f"{found.name}: its layers keep a state of another kind.")
    except UnsupportedModel as error:
        if not whole_texts:
            raise UnsupportedModel(f"{error} {WAY_OUT}") from error
        seen, call = _on_meta_or_zeros(
            module, found.name, partial(record_whole, why=str(error).rstrip("."))
        )
    longest = _max_len(found.text_config, module, call)
    spec = _spec(found, seen, source, num_weights=num_weights, max_model_len=longest)
    products = tuple(products_of(module))
    return FallbackPlan(found, seen, call, num_weights, spec, products, whole_texts)


def _on_meta_or_zeros(
    module: nn.Module, name: str, see: Callable[[nn.Module], tuple[Seen, BodyCall]]
) -> tuple[Seen, BodyCall]:
    """Call the module on the meta device, or with zeros that take no memory if it reads values."""
    if next(module.parameters()).is_meta:
        with contextlib.suppress(Exception):  # code of the class; the second try reports the error
            return see(module)
        _as_zeros(module)
    try:
        return see(module)
    except QuireError as error:
        raise UnsupportedModel(f"{name}: {error}") from error
    except Exception as error:  # any error of the class's own code
        said = reason(error).rstrip(".")
        raise UnsupportedModel(f"{name}: it cannot be called by quire: {said}.") from error


def _as_zeros(module: nn.Module) -> None:
    """Replace every weight by one zero, expanded to its shape, and also tensors that a first call
    on meta left in attributes (a rope's frequencies). Buffers become full zeros."""
    for part in module.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor) and value.is_meta:
                setattr(part, name, torch.zeros((), dtype=value.dtype).expand(value.shape))
        for name, weight in part.named_parameters(recurse=False):
            zeros = torch.zeros((), dtype=weight.dtype).expand(weight.shape)
            part.register_parameter(name, nn.Parameter(zeros, requires_grad=False))
        for name, buffer in part.named_buffers(recurse=False):
            # Not expanded: some are written to (frequencies of ropes, since Transformers 5.23).
            setattr(part, name, torch.zeros(buffer.shape, dtype=buffer.dtype))


def _spec(
    found: CausalClass, seen: Seen, source: str, *, num_weights: int, max_model_len: int
) -> ModelSpec:
    config, pool, layers = found.text_config, seen.pool, seen.num_layers
    heads = seen.calls[0].num_heads if seen.calls else pool.num_heads
    wide = max(pool.key_dim, pool.value_dim)
    head_dim = -(-wide // HEAD_MULTIPLE) * HEAD_MULTIPLE
    values = config.to_dict()
    fields = Fields({k: values.get(k) for k in ("eos_token_id", "bos_token_id")}, source)
    bos = fields.ids("bos_token_id")
    dtype = str(getattr(found.config, "dtype", None) or "float32").removeprefix("torch.")
    if dtype not in _DTYPES:
        raise UnsupportedModel(f"{source}: weights in {dtype[:40]!r}; quire reads {_DTYPES}")
    attention = AttentionPlan(heads, pool.num_heads, head_dim, rope=None, **_scores(seen, head_dim))
    width = _width(num_weights, seen, layers, (heads + pool.num_heads) * head_dim)
    layer = LayerPlan(attention, MlpPlan(width), NormPlan(UNUSED_EPS))
    keeping = replace(layer, state=_state(seen.state_numbers)) if seen.stateful else layer
    num_stateful = len(seen.stateful)
    # The spec has no windows: the engine would give back blocks that these models may read.
    return ModelSpec(
        family=FAMILY,
        vocab_size=seen.vocab_size,
        hidden_size=seen.hidden_size,
        max_model_len=max_model_len,
        layers=(layer,) * (layers - num_stateful) + (keeping,) * num_stateful,
        norm=NormPlan(UNUSED_EPS),
        eos_ids=fields.ids("eos_token_id"),
        bos_id=bos[0] if bos else None,
        dtype=dtype,
    )


def _state(numbers: int) -> DeltaNetPlan:
    """A plan whose state has so many numbers. Only its size is used, to count memory."""
    return DeltaNetPlan(1, 0, numbers, 1, reach=1, norm=NormPlan(UNUSED_EPS))


def _scores(seen: Seen, head_dim: int) -> dict[str, Any]:
    """The scale of scores, and the softcap if all layers have the same: kernels know only one."""
    scale = seen.calls[0].scale if seen.calls else head_dim**-0.5
    softcaps = {call.softcap for call in seen.calls}
    return {"scale": scale, "softcap": softcaps.pop() if len(softcaps) == 1 else None}


def _width(weights: int, seen: Seen, layers: int, attended: int) -> int:
    """The width of a gated feed-forward with which a layer would be as large as this model's
    layers. Plans and memory are estimated with it."""
    body = max(0, weights - 2 * seen.vocab_size * seen.hidden_size) // layers
    return max(1, (body - 2 * seen.hidden_size * attended) // (3 * seen.hidden_size))


def _max_len(config: Any, module: nn.Module, call: BodyCall) -> int:
    """The longest text: what the config says, but no more than tables of positions hold, nor than
    the length at which a rope's frequencies would change for other sequences of the pass."""
    said = [n for key in _LENGTHS if isinstance(n := getattr(config, key, None), int) and n > 0]
    longest = said[0] if said else UNSAID_LENGTH
    for rope in _ropes(getattr(config, "rope_parameters", None)):
        key = _CHANGING_ROPES.get(str(rope.get("rope_type")))
        limit = key and (rope.get(key) or getattr(config, key, None))
        longest = min(longest, limit) if isinstance(limit, int) else longest
    for name in call.position_tables:
        table: Any = module.get_submodule(name)
        # In a table with a padding index positions begin after that index.
        skipped = 0 if table.padding_idx is None else table.padding_idx + 1
        longest = min(longest, table.num_embeddings - skipped)
    return max(1, longest)


def _ropes(parameters: Any) -> list[dict[str, Any]]:
    """The ropes of a config: one, or one for each kind of layer."""
    if not isinstance(parameters, dict):
        return []
    inner = [value for value in parameters.values() if isinstance(value, dict)]
    return inner or [parameters]
