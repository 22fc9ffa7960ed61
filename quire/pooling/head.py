"""Head: hidden states on the host -> vectors, labels and scores, in float32 on the CPU.

These are a few products, while the text's layers took millions, so it does not matter where they
are computed, and here they are the same for all devices. Each text is computed by itself, so that
its bits do not depend on other texts. Ops without weights use numpy, whose calls on small arrays
are cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.errors import CorruptModel, UnsupportedModel
from quire.families.encoders.family import Dense, HeadPart
from quire.models.encoder_ops import Norm, activation
from quire.pooling.spec import (
    Classifier,
    PoolerSpec,
    PoolingType,
    Projection,
    Task,
    TokenRows,
)
from quire.step import Floats
from quire.weights.checkpoint import SINGLE, check_inside, read_header
from quire.weights.formats import StoredTensor
from quire.weights.read_rows import read_tensor
from quire.weights.source import ModelFiles

Op = Callable[[Tensor], Tensor]
TokenId = Callable[[str], int | None]
_LEAST_NORM = 1e-12  # so that a vector of zeros stays zeros
_HEADS = (
    "cls.output.weight",  # of GGUF: only the rows of the two tokens
    *("lm_head.weight", "model.embed_tokens.weight", "embed_tokens.weight"),
)


class Head:
    """The ops after the layers of one model."""

    def __init__(
        self, spec: PoolerSpec, hidden_size: int, projections: list[Op], labels: list[Op]
    ) -> None:
        self.spec = spec
        self.size = _width(spec, hidden_size)
        self._projections, self._labels = projections, labels

    def apply(
        self,
        task: Task,
        states: Floats,
        num_tokens: int,
        *,
        first: int = 0,
        dimensions: int | None = None,
        use_activation: bool | None = None,
    ) -> Floats:
        """The result of a task for the states of one text, without those of its tokens before
        `first`: [size], or [tokens, size] for token_* tasks."""
        by_token = task.startswith("token_")
        x = np.array(states)  # a copy: `states` is a view of a whole pass
        kinds = () if by_token else self.spec.pooling_of(task)
        if kinds:
            parts = [_pooled(x, kind, first, num_tokens) for kind in kinds]
            x = parts[0] if len(parts) == 1 else np.concatenate(parts, 1)
        if task in ("embed", "token_embed"):
            x = self._embedded(x, dimensions, use_activation)
        else:
            x = self._classified(x, use_activation, averaged=kinds == ("late",))
        return x if by_token else x[0]

    def _embedded(self, x: Floats, dimensions: int | None, use_activation: bool | None) -> Floats:
        if self._projections:
            x = _computed(self._projections, x)
        x = x[:, : dimensions or self.size]
        wanted = self.spec.normalise if use_activation is None else use_activation
        if not wanted:
            return x
        norms = np.sqrt(np.square(x).sum(1, keepdims=True))
        unit: Floats = x / np.maximum(norms, np.float32(_LEAST_NORM))
        return unit

    def _classified(self, x: Floats, use_activation: bool | None, *, averaged: bool) -> Floats:
        classifier, labels = self.spec.classifier, _computed(self._labels, x)
        labels = labels.mean(0, keepdims=True) if averaged else labels
        if use_activation is False or classifier is None:
            return labels
        return _computed([activation(classifier.activation)], labels)


@torch.inference_mode()
def _computed(ops: Sequence[Op], x: Floats) -> Floats:
    made = torch.from_numpy(x)
    for op in ops:
        made = op(made)
    found: Floats = made.numpy()
    return found


def _width(spec: PoolerSpec, hidden_size: int) -> int:
    """The size of an embedding."""
    pooled = hidden_size * len(spec.pooling)
    made = spec.projections[-1].rows if spec.projections else pooled
    return min(made, spec.cut_to or made)


def _pooled(x: Floats, pooling: PoolingType, first: int, num_tokens: int) -> Floats:
    """[1, H] of the states that a kind of pooling needs, or of all states, of tokens first ..
    num_tokens of a text."""
    made: Floats
    count = num_tokens - first
    match pooling:
        case "mean":
            made = x.sum(0, keepdims=True) / count
        case "mean_sqrt_len":
            made = x.sum(0, keepdims=True) / math.sqrt(count)
        case "max":
            made = x.max(0, keepdims=True)
        case "weightedmean":  # weights are positions in the whole text, from 1
            weights = np.arange(first + 1, num_tokens + 1, dtype=np.float32)[:, None]
            made = (weights * x).sum(0, keepdims=True) / weights.sum()
        case "cls":
            made = x[:1]
        case "last":
            made = x[-1:]
        case "late":  # what is made of them is averaged
            made = x
    return made


def load_head(
    spec: PoolerSpec, files: ModelFiles, hidden_size: int, token_id: TokenId, *, dummy: bool = False
) -> Head:
    """Read the weights of a pooler. CorruptModel if one is missing or has another shape.

    `token_id`: the id of a token by its text; `dummy`: random numbers instead of files.
    """
    stored = {} if dummy else files.stored_tensors()
    projections, width = [], hidden_size * len(spec.pooling)
    for one in spec.projections:
        projections.append(_projection(one, stored, files.modules_path, width))
        width = one.rows
    labels: list[Op] = []
    if spec.classifier is not None:
        labels = _classifier(spec.classifier, stored, files, hidden_size, token_id, dummy=dummy)
    return Head(spec, hidden_size, projections, labels)


def _projection(
    one: Projection, stored: Mapping[str, StoredTensor], directory: Path, width: int
) -> Op:
    if one.folder:
        path = directory / one.folder / SINGLE
        if not path.exists():
            raise UnsupportedModel(
                f"{path} is not there, and quire reads no other file of a module: save the model "
                "again with sentence-transformers, which then writes it"
            )
        stored = read_header(check_inside(directory, path))
    op, rows = _part(one.part, stored, "", width, f"{one.folder}/{SINGLE}")
    if (one.columns, one.rows) != (width, rows):
        raise CorruptModel(
            f"{one.folder}: the config says {one.columns} in and {one.rows} out, the weights have "
            f"{width} and {rows}"
        )
    if one.bias != (f"{one.part.name}.bias" in stored):
        raise CorruptModel(f"{one.folder}: bias is {one.bias} in the config and not in the weights")
    return op


def _classifier(
    classifier: Classifier,
    stored: Mapping[str, StoredTensor],
    files: ModelFiles,
    width: int,
    token_id: TokenId,
    *,
    dummy: bool,
) -> list[Op]:
    if dummy:
        made = torch.Generator().manual_seed(0)
        weight = torch.empty(classifier.num_labels, width).normal_(0, 0.02, generator=made)
        return [lambda x: F.linear(x, weight)]
    if isinstance(classifier.parts, TokenRows):
        weight = _difference(classifier.parts, stored, width, token_id)
        return [lambda x: F.linear(x, weight)]
    ops = []
    for part in classifier.parts:
        op, width = _part(part, stored, classifier.prefix, width, str(files.path))
        ops.append(op)
    if width != classifier.num_labels:
        raise CorruptModel(
            f"{files.path}: the head has {width} labels, config.json names {classifier.num_labels}"
        )
    return ops


def _part(
    part: HeadPart, stored: Mapping[str, StoredTensor], prefix: str, width: int, where: str
) -> tuple[Op, int]:
    """The op of a part, and the size of its result for a token."""
    names = [f"{part.name}.weight", f"{part.name.removeprefix(prefix)}.weight"]
    if isinstance(part, Dense) and part.also:
        names.append(f"{part.also}.weight")
    name = next((one for one in names if one in stored), None)
    if name is None:
        raise CorruptModel(
            f"{where}: tensor {names[0]!r} is missing. convert='embed' leaves a head for classes "
            "out"
        )
    weight = read_tensor(stored[name])
    bias = stored.get(f"{name.removesuffix('weight')}bias")
    beside = None if bias is None else read_tensor(bias)
    if weight.shape[-1] != width or (beside is not None and beside.shape != weight.shape[:1]):
        raise CorruptModel(
            f"{where}: tensor {name!r} has the shape {tuple(weight.shape)}; what comes before it "
            f"has {width} numbers"
        )
    if isinstance(part, Dense):
        after = activation(part.activation)
        return lambda x: after(F.linear(x, weight, beside)), weight.shape[0]
    return Norm(weight, beside, part.eps), width


def _difference(
    rows: TokenRows, stored: Mapping[str, StoredTensor], width: int, token_id: TokenId
) -> Tensor:
    """The second token's row minus the first token's: [1, H]."""
    head = next((stored[name] for name in _HEADS if name in stored), None)
    if head is None or head.shape[1:] != (width,):
        raise CorruptModel(f"a head made of tokens: the model has no head of {width} columns")

    def row(token: str | int) -> Tensor:
        number = token if isinstance(token, int) else token_id(token)
        if number is None or number >= head.shape[0]:
            raise CorruptModel(f"a head made of tokens: {token!r} is no token of this model")
        return read_tensor(head, number, 1)

    return row(rows.yes) if rows.no is None else row(rows.yes) - row(rows.no)
