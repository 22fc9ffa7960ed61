"""Models that Transformers computes: when they are, and how they come to an executor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quire.config import EngineConfig
from quire.errors import NotEnoughMemory, NotSupported, UnsupportedModel
from quire.models.fallback.registered import CLASSES
from quire.options import DeviceFacts, Options, resolve
from quire.spec import ModelSpec
from quire.weights.source import ModelFiles

if TYPE_CHECKING:
    from quire.models.fallback.loaded import LoadedModule
    from quire.models.fallback.planning import FallbackPlan

OWN = ("quire", "vllm")


def plan_model(files: ModelFiles, options: Options) -> ModelSpec | FallbackPlan:
    """The spec of a family of quire's own; a plan for Transformers where that is asked for, or
    where no family has the model."""
    if options.model_impl == "auto" and _is_registered(files.config.get("architectures")):
        return _plan(files, options)
    if options.model_impl in OWN or (files.kind == "gguf" and options.model_impl == "auto"):
        return files.spec(options.hf_overrides)
    if options.model_impl == "transformers":
        return _plan(files, options)
    try:
        return files.spec(options.hf_overrides)
    except UnsupportedModel as unknown:
        try:
            return _plan(files, options)
        except UnsupportedModel as refused:
            raise UnsupportedModel(f"{unknown} Nor with Transformers: {refused}") from refused


def _is_registered(architectures: object) -> bool:
    """Whether a program named a class for what a config names first."""
    return isinstance(architectures, list) and bool(architectures) and architectures[0] in CLASSES


def _plan(files: ModelFiles, options: Options) -> FallbackPlan:
    if files.kind == "gguf":
        raise NotSupported(
            "model_impl='transformers' with a GGUF file: Transformers reads a model's directory. "
            "Leave model_impl out, or give the directory with config.json and safetensors."
        )
    try:
        from quire.models.fallback.classes import find_class
        from quire.models.fallback.planning import plan_fallback
    except ImportError as error:
        raise UnsupportedModel(f"Transformers is not there to compute it: {error}") from error
    values = {**files.config, **(options.hf_overrides or {})}
    found = find_class(values, files.path, trust_remote_code=options.trust_remote_code)
    whole_texts = options.model_impl == "transformers"
    return plan_fallback(found, str(files.path / "config.json"), whole_texts=whole_texts)


def resolve_fallback(options: Options, plan: FallbackPlan, facts: DeviceFacts) -> EngineConfig:
    """The config of a model that Transformers computes: as for others, without what needs
    quire's own layers."""
    for name, value, way_out in (
        ("batch_invariant", options.batch_invariant, "Leave it out."),
        ("quantization", options.quantization not in (None, "none"), "Leave it out."),
        ("kv_cache_dtype", options.kv_cache_dtype == "fp8", "Leave it at 'auto'."),
        ("enable_lora", options.enable_lora, "Merge the adapter into its base, and load that."),
    ):
        if value:
            raise NotSupported(
                f"{name}={getattr(options, name)!r}: {plan.found.name} is computed by "
                f"Transformers, and this needs layers of quire's own. {way_out}"
            )
    config = resolve(options, plan.spec, replace(facts, steady_kernels=False))
    notes = [f"{plan.found.name}: computed by Transformers (model_impl='transformers')"]
    if facts.device == "cuda" and not options.enforce_eager:
        notes.append("no CUDA graphs: code of Transformers is not captured")
    return replace(config, enforce_eager=True, notes=(*notes, *config.notes))


def load_fallback(files: ModelFiles, plan: FallbackPlan, config: EngineConfig) -> LoadedModule:
    """The module with its weights, on its device."""
    import torch

    from quire.executor.probe import available_memory
    from quire.models.fallback.weights import dummy_module, load_module

    dtype, device = getattr(torch, config.dtype), torch.device(config.device)
    needed = plan.num_weights * dtype.itemsize
    free = torch.cuda.mem_get_info()[0] if config.device == "cuda" else available_memory()
    if needed > free:
        raise NotEnoughMemory(
            f"the weights take {needed / 1e9:.1f} GB in {config.dtype}, {free / 1e9:.1f} GB are "
            f"free on {config.device}. A 16-bit dtype or a smaller model takes less."
        )
    if config.load_format == "dummy":
        return dummy_module(plan, dtype=dtype, device=device, seed=config.seed)
    return load_module(plan, files.path, dtype=dtype, device=device)
