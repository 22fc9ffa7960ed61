"""Models that Transformers computes: which models these are, and how executors get them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from quire.base.notes import note
from quire.config import EngineConfig
from quire.errors import InvalidOption, NotEnoughMemory, NotSupported, UnsupportedModel
from quire.executor.driver import first_gpu
from quire.executor.precompile.cuda_context import torch_knows_cuda
from quire.families.chunks import chunk_of, within_a_chunk
from quire.families.rope_config import for_length, long_len
from quire.models.fallback.registered import CLASSES
from quire.options import DeviceFacts, Options, resolve
from quire.options.decide import DEFAULT_BLOCK_SIZE
from quire.ranks.shares import ALONE, OPTION, RankShare
from quire.spec import ModelSpec
from quire.weights.quantised.config import without_quantisation
from quire.weights.source import ModelFiles

if TYPE_CHECKING:
    from torch import Tensor

    from quire.layers.tp import TensorParallel
    from quire.models.fallback.loaded import LoadedModule
    from quire.models.fallback.planning import FallbackPlan

OWN = ("quire", "vllm")
MOST_INLINE_TOKENS = 2048


def plan_model(files: ModelFiles, options: Options) -> ModelSpec | FallbackPlan:
    """The spec of one of quire's own families; a plan for Transformers if that is asked for, or if
    no family has the model."""
    if options.model_impl == "auto" and _is_registered(files.config.get("architectures")):
        return _plan(files, options)
    if options.model_impl in OWN or (files.kind == "gguf" and options.model_impl == "auto"):
        return own_spec(files, options)
    if options.model_impl == "transformers":
        return _plan(files, options)
    try:
        return own_spec(files, options)
    except UnsupportedModel as unknown:
        try:
            return _plan(files, options)
        except UnsupportedModel as refused:
            raise UnsupportedModel(f"{unknown} Nor with Transformers: {refused}") from refused


def own_spec(files: ModelFiles, options: Options) -> ModelSpec:
    """The spec from one of quire's own families, for texts as long as asked for."""
    spec = _for_chunks(files.spec(options.hf_overrides), options)
    longer, longest = for_length(spec, options.max_model_len or 0), long_len(spec)
    if longest:
        now = "short" if longer is spec else "long"
        other = longest if longer is spec else spec.max_model_len
        note(
            f"longrope: every text is computed with the {now} factors, for lengths up to "
            f"{longer.max_model_len:,}; max_model_len up to {other:,} takes the others"
        )
    return longer


def _for_chunks(spec: ModelSpec, options: Options) -> ModelSpec:
    """The spec without chunks if texts are no longer than one; or if longer ones cannot be
    computed, which is refused where they are asked for."""
    chunk, asked = chunk_of(spec), options.max_model_len or 0
    if not chunk or 0 < asked <= chunk:
        return within_a_chunk(spec) if chunk else spec
    size = options.block_size or DEFAULT_BLOCK_SIZE
    if options.device != "cpu" and torch_knows_cuda() and first_gpu() is not None:
        why, way_out = "is not built for a GPU", "device='cpu'"
    elif chunk % size:
        why, way_out = f"takes blocks that divide it, not {size} tokens", "another block_size"
    else:
        return spec
    if asked > chunk:
        raise UnsupportedModel(
            f"max_model_len {asked:,} is above attention_chunk_size {chunk:,}: in longer texts a "
            f"token sees only its own chunk, which {why}. Use at most {chunk:,}, {way_out}, or "
            "model_impl='transformers' with a directory."
        )
    note(
        f"attention_chunk_size: texts have at most {chunk:,} tokens, a chunk; more, up to "
        f"{spec.max_model_len:,}, {why}; Transformers computes them, more slowly, if max_model_len "
        "says so"
    )
    return within_a_chunk(spec)


def _is_registered(architectures: object) -> bool:
    """Whether a program registered a class for the config's first architecture."""
    return isinstance(architectures, list) and bool(architectures) and architectures[0] in CLASSES


def _plan(files: ModelFiles, options: Options) -> FallbackPlan:
    if files.kind == "gguf":
        raise NotSupported(
            "model_impl='transformers' with a GGUF file: Transformers reads a model's directory. "
            "Leave model_impl out, or give the directory with config.json and safetensors."
        )
    return plan_asked(files, AskedClass.of(options))


@dataclass(frozen=True, slots=True)
class AskedClass:
    """The options about a class of Transformers; plain data, sent to ranks in other processes."""

    overrides: str  # JSON, merged into the model's config
    trust_remote_code: bool
    whole_texts: bool

    @classmethod
    def of(cls, options: Options) -> AskedClass:
        overrides = json.dumps(dict(options.hf_overrides or {}))
        return cls(overrides, options.trust_remote_code, options.model_impl == "transformers")

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> AskedClass:
        return cls(**json.loads(text))


def plan_asked(files: ModelFiles, asked: AskedClass, share: RankShare = ALONE) -> FallbackPlan:
    """The plan by which Transformers computes a model, or a rank's share of it."""
    try:
        from quire.models.fallback.classes import find_class
        from quire.models.fallback.planning import plan_fallback
    except ImportError as error:
        raise UnsupportedModel(f"Transformers is not there to compute it: {error}") from error
    values = without_quantisation({**files.config, **json.loads(asked.overrides)})
    found = find_class(values, files.path, trust_remote_code=asked.trust_remote_code)
    source, whole_texts = str(files.path / "config.json"), asked.whole_texts and share.size == 1
    return plan_fallback(found, source, whole_texts=whole_texts, share=share)


def check_divided(plan: FallbackPlan, files: ModelFiles, options: Options) -> None:
    """Check that ranks can compute the model, before any rank is started."""
    size, heads = options.tensor_parallel_size, plan.seen.pool.num_heads
    if _is_registered(files.config.get("architectures")):
        raise NotSupported(
            f"{OPTION}={size}: {plan.found.name} was registered by this program, and ranks are "
            "others. Use a class of Transformers, or data_parallel_size."
        )
    if options.enable_lora:
        raise NotSupported(
            f"{OPTION}={size} with enable_lora=True: adapters of models that Transformers computes "
            "are not divided among ranks. Merge the adapter, or use data_parallel_size."
        )
    if not plan.seen.calls:
        raise NotSupported(
            f"{OPTION}={size}: {plan.found.name} computes a sequence at a time "
            f"({plan.seen.why_rows}), which ranks do not. Use data_parallel_size."
        )
    if heads % size:
        raise InvalidOption(
            f"{OPTION}={size} does not divide the {heads} KV heads of {plan.found.name}, which "
            f"Transformers computes in equal parts. Use a divisor of {heads}.",
            parameter=OPTION,
            value=size,
        )
    plan_asked(files, AskedClass.of(options), RankShare(0, size))


def resolve_fallback(
    options: Options, plan: FallbackPlan, facts: DeviceFacts, *, stored: str
) -> EngineConfig:
    """The config of a model that Transformers computes: without the features that need quire's own
    layers. Naming the format its weights are `stored` in is allowed: they are dequantised."""
    on_gpu = facts.device != "cpu"
    for name, value, way_out in (
        ("batch_invariant", options.batch_invariant, "Leave it out."),
        ("quantization", options.quantization not in (None, "none", stored), "Leave it out."),
        ("kv_cache_dtype", options.kv_cache_dtype == "fp8", "Leave it at 'auto'."),
        ("enable_lora", options.enable_lora and on_gpu, "Merge the adapter, or set device='cpu'."),
    ):
        if value:
            raise NotSupported(
                f"{name}={getattr(options, name)!r}: {plan.found.name} is computed by "
                f"Transformers, and this needs layers of quire's own. {way_out}"
            )
    options = options if not stored else replace(options, quantization="none")
    config = resolve(options, plan.spec, replace(facts, steady_kernels=False))
    notes = [f"{plan.found.name}: computed by Transformers (model_impl='transformers')"]
    if stored:
        notes.append(f"{stored}: the weights are dequantised when they are loaded")
    return replace(config, notes=(*notes, *config.notes))


def inline_config(config: EngineConfig, plan: FallbackPlan) -> EngineConfig:
    """The config on a GPU for a model that is computed a sequence at a time. The host waits for
    every pass, and passes are short, as the scores of all pairs of tokens are in memory at once."""
    if config.speculation is not None:
        raise NotSupported(
            f"speculative_config: {plan.found.name} is computed a sequence at a time "
            f"({plan.seen.why_rows}), and guesses on a GPU are judged in captured steps. Leave it "
            "out."
        )
    most = min(config.max_num_batched_tokens, MOST_INLINE_TOKENS)
    return replace(config, depth=1, max_repeat=1, max_num_batched_tokens=most)


def load_fallback(
    files: ModelFiles, plan: FallbackPlan, config: EngineConfig, tp: TensorParallel | None = None
) -> LoadedModule:
    """The module with its weights, on its device; a rank gets its part of them. Each rank first
    reads the whole model into main memory."""
    import torch

    from quire.executor.probe import available_memory
    from quire.models.fallback.loaded import LoadedModule
    from quire.models.fallback.weights import dummy_module, load_module, part_of_rank
    from quire.weights.quantised.plain import plain_tensors

    dtype, device = getattr(torch, config.dtype), torch.device(config.device)
    needed, host = plan.num_weights * dtype.itemsize, available_memory()
    if tp is not None and needed * tp.size * tp.size > host:
        raise NotEnoughMemory(
            f"each of {tp.size} ranks reads all weights of a model that Transformers computes, "
            f"{needed * tp.size / 1e9:.1f} GB in {config.dtype}, and {host / 1e9:.1f} GB of main "
            "memory are free. Use fewer ranks, or data_parallel_size."
        )
    free = torch.cuda.mem_get_info()[0] if config.device == "cuda" else host
    if needed > free:
        raise NotEnoughMemory(
            f"the weights take {needed / 1e9:.1f} GB in {config.dtype}, {free / 1e9:.1f} GB are "
            f"free on {config.device}. A 16-bit dtype or a smaller model takes less."
        )
    if config.load_format == "dummy":
        module = dummy_module(plan, dtype=dtype, seed=config.seed)
    else:
        said, stored = files.quantisation, files.stored_tensors()  # which refuses pickles by name
        plain = None if said is None else plain_tensors(stored, said, dtype)
        module = load_module(plan, files.path, dtype=dtype, tensors=plain)
    expected: tuple[Tensor, ...] = ()
    if tp is not None:
        expected = part_of_rank(module, plan, tp, config.block_size)
    return LoadedModule(module.to(device), plan.call, plan.seen, expected, plan.whole_texts)
