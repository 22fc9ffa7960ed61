"""A model is chosen part by part while it is built, and nothing looks at the parts afterwards."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest
import torch

from quire.backends.choose import kernels_for, torch_kernels
from quire.backends.ops import HeadShape
from quire.executor.declined import declined_notes
from quire.layer_parts.streams import StreamsPlan
from quire.layer_plan import MlpPlan, NormPlan, SparsePlan
from tests.specs import small_spec

PACKAGE = Path(__file__).resolve().parents[2] / "quire"
# What a weight is, whose product is being made: asked while building.
ASKED_OF_WEIGHTS = {"Rows", "LoadedModule"}
# Who computes a whole model: quire's own layers, or Transformers (models/fallback).
WHOLE = {"Decoder"}
TYPED = ("layers/", "models/", "backends/ops.py", "backends/generic.py", "backends/cpu/")
OF_OTHERS = ("models/fallback/", "models/towers/")  # modules of Transformers
SPEC = small_spec()


@dataclass
class Read:
    """What is asked of the package: each file is read and walked once, and no tree is kept."""

    parts: set[str] = field(default_factory=set)
    asked: list[tuple[str, ast.expr]] = field(default_factory=list)
    typed_any: list[str] = field(default_factory=list)


@cache
def package() -> Read:
    read = Read()
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        typed = name.startswith(TYPED) and not name.startswith(OF_OTHERS)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.ClassDef() if is_part(name, node):
                    read.parts.add(node.name)
                case ast.Call(ast.Name("isinstance" | "issubclass" | "hasattr"), [_, kinds, *_]):
                    read.asked.append((f"{name}:{node.lineno}", kinds))
                case ast.Name("Any") if typed:
                    read.typed_any.append(f"{name}:{node.lineno}")
    return read


def is_part(path: str, node: ast.ClassDef) -> bool:
    """Classes of layers and models, and those of backends that compute for them."""
    methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    op = path.startswith("backends/") and methods & {"write_rows", "rope_and_store"}
    return bool(op) or path.startswith(("layers/", "models/"))


def test_nothing_asks_what_a_built_part_is() -> None:
    parts = package().parts - ASKED_OF_WEIGHTS - WHOLE
    assert {"Attention", "Linear", "GatedMLP", "PlainLinear", "NativeLinear"} <= parts
    asked = {
        f"{where} {name.id}"
        for where, kinds in package().asked
        for name in ast.walk(kinds)
        if isinstance(name, ast.Name) and name.id in parts
    }
    # A backend that stacks the products it made itself, while it builds experts of them or puts
    # slots for adapters behind their weights.
    makers = tuple(f"backends/triton/{name}.py:" for name in ("kernels", "invariant", "adapters"))
    own = {one for one in asked if one.startswith(makers)}
    assert asked - own == set() and len(own) <= len(makers)


def test_no_part_is_typed_any() -> None:
    assert package().typed_any == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_has_no_kernel_is_said(dtype: torch.dtype) -> None:
    layer = SPEC.layers[0]
    norm = NormPlan(1e-5, "layer")
    other = replace(layer, norm=norm, mlp=MlpPlan(64, "relu2", gated=False))
    spec = replace(SPEC, layers=(layer, other), norm=norm)
    shape = HeadShape(4, 2, 8, 16, dtype)
    native = kernels_for("cpu", shape, batch_invariant=False)
    assert declined_notes(native, SPEC) == ()
    [line] = declined_notes(native, spec)
    assert line.endswith("layer norms, relu2 without a gate")
    assert declined_notes(torch_kernels(shape, batch_invariant=False), spec) == ()
    cut = replace(layer, mlp=MlpPlan(64, sparse=SparsePlan(0.5, 64)))
    spread = replace(SPEC, layers=(layer, cut), streams=StreamsPlan(2, 0, 4))
    [line] = declined_notes(native, spread)
    assert line.endswith("gates with a cutoff, several streams")
    one_plus = replace(SPEC, layers=(replace(layer, norm=NormPlan(1e-5, one_plus=True)),) * 2)
    said = declined_notes(native, one_plus)
    assert bool(said) == (dtype == torch.bfloat16)
