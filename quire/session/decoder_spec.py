"""The spec of a decoder, and whether the model can write text at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quire.families.registry import CAUSAL
from quire.options import Options
from quire.pooling.spec import PoolerSpec
from quire.session.fallback import plan_model
from quire.spec import ModelSpec
from quire.weights.source import ModelFiles
from quire.weights.tied import head_name, with_stored_head

if TYPE_CHECKING:
    from quire.models.fallback.planning import FallbackPlan


def decoder_plan(
    files: ModelFiles, pooler: PoolerSpec, options: Options
) -> tuple[ModelSpec | FallbackPlan, str | None]:
    """(the spec of the model, or the plan by which Transformers computes it; why the model writes
    no text, or None).

    A model without an output head is built as if its head were its embedding, without a bias: the
    head is never used."""
    spec = plan_model(files, options)
    if not isinstance(spec, ModelSpec):
        return spec, _headless(files, options) if spec.found.headless else None
    if options.load_format == "dummy":
        return spec, _headless(files, options)
    spec = with_stored_head(files, spec)
    why = _headless(files, options)
    is_apart = pooler.tasks and files.kind == "hf" and not spec.tied_embeddings
    if why is None and is_apart and head_name(spec) not in files.stored_tensors():
        why = f"this model writes no text: {head_name(spec)} is not among its tensors."
    if why is not None:
        spec = replace(spec, tied_embeddings=True, logits=replace(spec.logits, bias=False))
    return spec, why


def _headless(files: ModelFiles, options: Options) -> str | None:
    """Why an architecture writes no text, judged by its name; or None."""
    given = {**files.config, **(options.hf_overrides or {})}.get("architectures")
    names = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
    if not names or any(name.endswith((CAUSAL, "LMHeadModel", "Generation")) for name in names):
        return None
    return f"this model writes no text: {names[0]} has no head for tokens."
