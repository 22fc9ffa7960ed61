"""The stored tensors of an encoder as named weights: all checked first, then read one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.errors import CorruptModel, UnsupportedModel
from quire.families.encoders.family import EncoderFamily, EncoderNames
from quire.spec import EncoderSpec
from quire.weights.formats import READABLE, StoredTensor
from quire.weights.read_rows import read_tensor
from quire.weights.source import ModelFiles

# Names in files that were converted from TensorFlow.
_OLDER = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))


@dataclass(frozen=True, slots=True)
class EncoderWeight:
    """One weight, and the stored tensors that fill it from the top, with their numbers of rows. If
    `halves_swapped`, the stored tensor has the second half of the rows first."""

    name: str
    shape: tuple[int, ...]
    stored: tuple[str, ...]
    rows: tuple[int, ...]
    halves_swapped: bool = False


def encoder_weights(spec: EncoderSpec, family: EncoderFamily) -> Iterator[EncoderWeight]:
    names, width = family.names_of(spec), spec.embedding_width or spec.hidden_size
    for name, stored, rows in (
        ("embed", names.words, spec.vocab_size),
        ("positions", names.positions, spec.num_positions),
        ("types", names.types, spec.num_types),
    ):
        if rows:
            yield EncoderWeight(f"{name}.weight", (rows, width), (f"{stored}.weight",), (rows,))
    if count := spec.num_distances:
        shape = (count, spec.num_heads)
        yield EncoderWeight("distances.weight", shape, (f"{names.distances}.weight",), (count,))
    if spec.embed_norm:
        yield from _norm("embed_norm", names.embed_norm, spec, width)
    if spec.embedding_width:
        for kind, columns in (("weight", (width,)), ("bias", ())):
            stored, whole = f"{names.embed_product}.{kind}", (spec.hidden_size, *columns)
            yield EncoderWeight(f"embed_product.{kind}", whole, (stored,), whole[:1])
    for i in range(spec.num_layers):
        yield from _layer(i, spec, names)
    if spec.norms != "after":
        yield from _norm("norm", names.norm, spec)


def _layer(index: int, spec: EncoderSpec, names: EncoderNames) -> Iterator[EncoderWeight]:
    ours, theirs = f"layers.{index}", names.layer.format(index)
    hidden, inner, width = spec.hidden_size, spec.intermediate_size, spec.num_heads * spec.head_dim
    heads = (width, *(spec.num_kv_heads * spec.head_dim,) * 2)

    def linear(
        name: str, stored: Sequence[str], rows: Sequence[int], columns: int, bias: bool
    ) -> Iterator[EncoderWeight]:
        rows = rows if len(stored) > 1 else (sum(rows),)
        for kind, shape in (("weight", (columns,)), ("bias", ()))[: 1 + bias]:
            full = tuple(f"{theirs}{one}.{kind}" for one in stored)
            swapped = names.gate_behind and name == "mlp.up"
            whole = (sum(rows), *shape)
            yield EncoderWeight(f"{ours}.{name}.{kind}", whole, full, tuple(rows), swapped)

    yield from linear("attn.qkv", names.qkv, heads, hidden, spec.attention_bias)
    yield from linear("attn.o", (names.o,), (hidden,), width, spec.attention_bias)
    if spec.has_experts(index):
        yield from _experts(f"{ours}.mlp", theirs, spec, names)
    else:
        halves, biased = (inner,) * (1 + spec.gated), spec.mlp_bias and spec.up_bias
        yield from linear("mlp.up", names.up, halves, hidden, biased)
        yield from linear("mlp.down", (names.down,), (hidden,), inner, spec.mlp_bias)
    if not (index == 0 and spec.norms == "before" and spec.embed_norm):  # normed already
        yield from _norm(f"{ours}.attn_norm", theirs + names.attn_norm, spec)
    yield from _norm(f"{ours}.mlp_norm", theirs + names.mlp_norm, spec)
    if spec.norms == "both":
        yield from _norm(f"{ours}.attn_post_norm", theirs + names.attn_post_norm, spec)
        yield from _norm(f"{ours}.mlp_post_norm", theirs + names.mlp_post_norm, spec)
    if spec.qk_norm:
        yield from _norm(f"{ours}.attn.q_norm", theirs + names.q_norm, spec, spec.head_dim)
        yield from _norm(f"{ours}.attn.k_norm", theirs + names.k_norm, spec, spec.head_dim)


def _experts(
    ours: str, theirs: str, spec: EncoderSpec, names: EncoderNames
) -> Iterator[EncoderWeight]:
    count, hidden = spec.num_experts, spec.hidden_size
    rows = count * spec.intermediate_size
    for name, stored, shape in (
        ("router.weight", f"{names.router}.weight", (count, hidden)),
        ("first.weight", f"{names.experts}.mlp.w1", (rows, hidden)),
        ("second.weight", f"{names.experts}.mlp.w2", (rows, hidden)),
        ("after.bias", f"{names.experts}.bias", (hidden,)),
    ):
        yield EncoderWeight(f"{ours}.{name}", shape, (theirs + stored,), shape[:1])


def _norm(name: str, stored: str, spec: EncoderSpec, width: int = 0) -> Iterator[EncoderWeight]:
    width = width or spec.hidden_size
    for kind in ("weight", "bias") if spec.norm_bias else ("weight",):
        yield EncoderWeight(f"{name}.{kind}", (width,), (f"{stored}.{kind}",), (width,))


def load_encoder_weights(
    files: ModelFiles,
    spec: EncoderSpec,
    family: EncoderFamily,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> dict[str, Tensor]:
    """The weights of an encoder on `device`, by quire's names, in `dtype`; norms in float32."""
    stored = files.stored_tensors()
    plan = [
        (weight, [_found(*one, weight, stored, family, files) for one in _parts(weight)])
        for weight in encoder_weights(spec, family)
    ]
    _check_unused([source for _, sources in plan for source in sources], stored, family, files)
    weights = {}
    for weight, sources in plan:
        kept = torch.float32 if _is_norm(weight) else dtype
        parts = [read_tensor(source).to(kept) for source in sources]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        if weight.halves_swapped:
            whole = whole.roll(len(whole) // 2, 0)
        weights[weight.name] = whole.to(device)
    return weights


def dummy_encoder_weights(
    spec: EncoderSpec,
    family: EncoderFamily,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
) -> dict[str, Tensor]:
    """Random weights of the right shapes: norms are 1, all others normal with deviation 0.02."""
    made, generator = {}, torch.Generator().manual_seed(seed)
    for weight in encoder_weights(spec, family):
        out = torch.empty(weight.shape)
        if weight.name.endswith("norm.weight"):
            out.fill_(1.0)
        else:
            out.normal_(0.0, 0.02, generator=generator)
        made[weight.name] = out.to(device, torch.float32 if _is_norm(weight) else dtype)
    return made


def _is_norm(weight: EncoderWeight) -> bool:
    """Norms are computed in float32, whatever the dtype of products."""
    return weight.name.rpartition(".")[0].endswith("norm")


def _parts(weight: EncoderWeight) -> Iterator[tuple[str, int]]:
    return zip(weight.stored, weight.rows, strict=True)


def _found(
    name: str,
    rows: int,
    weight: EncoderWeight,
    stored: Mapping[str, StoredTensor],
    family: EncoderFamily,
    files: ModelFiles,
) -> StoredTensor:
    names = [family.prefix + name, name]
    names += [one.replace(new, old) for one in names for new, old in _OLDER if new in one]
    source = next((stored[one] for one in names if one in stored), None)
    if source is None:
        raise CorruptModel(f"{files.path}: tensor {names[0]!r} is missing")
    expected = (rows, *weight.shape[1:])
    if source.shape != expected:
        raise CorruptModel(
            f"{files.path}: tensor {source.name!r} has the shape {source.shape}; the model's "
            f"config asks for {expected}"
        )
    if source.format.name not in READABLE:
        raise UnsupportedModel(
            f"{files.path}: tensor {source.name!r} is stored as {source.format.name}; quire reads "
            f"{', '.join(READABLE)}"
        )
    return source


def _check_unused(
    used: list[StoredTensor],
    stored: Mapping[str, StoredTensor],
    family: EncoderFamily,
    files: ModelFiles,
) -> None:
    """Refuse other tensors in a layer: quire does not know their part of the model."""
    known = set(used)
    layers = family.names.layer.partition("{}")[0]
    for name, tensor in stored.items():
        if tensor not in known and name.removeprefix(family.prefix).startswith(layers):
            raise UnsupportedModel(
                f"{files.path}: tensor {name!r} is of a part that quire does not know; it is "
                "another model than its config says, or has more layers"
            )
