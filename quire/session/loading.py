"""From a model's name to a running engine: files, spec, decisions, weights, executor."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.base.notes import note
from quire.config import EngineConfig
from quire.errors import InvalidOption, NotSupported
from quire.executor.cpu.spinning import short_spins
from quire.executor.executor import ExecutorFacts, ModelExecutor
from quire.executor.precompile.cuda_context import wake_gpu
from quire.executor.precompile.parent import Compiling, begin_compiling, hash_triton
from quire.families.encoders.registry import encoder_family
from quire.inputs.chat import read_template
from quire.inputs.tokenizer import Tokenizer
from quire.options import DeviceFacts, Options, resolve
from quire.options.checks import FIT_TO_MEMORY
from quire.options.plugins import unused_line
from quire.pooling.choose import choose_pooler
from quire.pooling.spec import PoolerSpec
from quire.session.adapters import make_store
from quire.session.decoder_spec import decoder_plan
from quire.session.encoder_loading import NO_TEXT, load_encoder
from quire.session.fallback import inline_config, load_fallback, own_spec, resolve_fallback
from quire.session.hf_config import config_of
from quire.session.loaded_model import LoadedModel, unread_line
from quire.session.media import ModelMedia
from quire.session.quantisation import check_quantisation, weight_facts
from quire.session.ranks import ranks_executor
from quire.spec import AnySpec, EncoderSpec, ModelSpec
from quire.weights.source import ModelFiles, locate

if TYPE_CHECKING:
    from torch import Tensor

    from quire.models.fallback.planning import FallbackPlan
    from quire.pooling.head import Head


def load(model: str, options: Options) -> LoadedModel:
    """Find the model, decide how to run it, and start the executor."""
    work = _load
    if "torch" in sys.modules:  # otherwise its defaults cannot have been changed
        from quire.executor.torch_defaults import by_usual_defaults

        work = by_usual_defaults(work)
    with ExitStack() as undone:
        loaded = work(model, options, undone)
        undone.pop_all()
    return loaded


def _load(model: str, options: Options, undone: ExitStack) -> LoadedModel:
    """`undone` ends what was started, if loading fails."""
    _check_given(model, options)
    wake_gpu("cpu" if options.tensor_parallel_size > 1 else options.device)
    files = find_files(model, options)
    said = {**files.config, **(options.hf_overrides or {})}
    encoder = encoder_family(said)
    pooler = choose_pooler(files, said, options, encoder)
    generation_config = generation_config_of(files, options)
    # The tokenizer is built by Rust and Python while torch reads the weights.
    media = ModelMedia.of(files, said, options)
    with ThreadPoolExecutor(1) as second:
        reading = second.submit(load_tokenizer, files, options)
        planned: AnySpec | FallbackPlan
        if encoder is not None:
            no_text: str | None = NO_TEXT
            planned, config, executor = load_encoder(files, said, encoder, pooler, options)
        else:
            planned, no_text = decoder_plan(files, pooler, options)
            media = media if isinstance(planned, ModelSpec) else None
            if media is not None:
                media.check(reading.result)
                undone.callback(media.children.close)
                media.start_children()
            config, executor = _executor(files, planned, options, media)
        facts = executor.start()
        tokenizer = reading.result()
    spec = planned if isinstance(planned, ModelSpec | EncoderSpec) else planned.spec
    head = _head(pooler, files, spec, tokenizer, dummy=options.load_format == "dummy")
    if options.max_model_len == FIT_TO_MEMORY:
        config = _fitted(config, facts)
    said_too = unused_line(options.logits_processors or ()), unread_line(generation_config, spec)
    for line in (*config.notes, *facts.notes, *said_too):
        if line:
            note(line)
    hf_config = (
        said if isinstance(spec, EncoderSpec) or files.config else {**config_of(spec), **said}
    )
    return LoadedModel(
        name=model,
        spec=spec,
        config=config,
        executor=executor,
        facts=facts,
        tokenizer=tokenizer,
        generation_config=generation_config,
        hf_config=hf_config,
        stored=partial(_stored, model, planned, options),
        head=head,
        no_text=no_text,
        media=media,
        adapters=make_store(config, planned, options, files, executor.handles),
    )


@dataclass(frozen=True, slots=True)
class ModelParts:
    """Everything about a model whose weights are loaded in other processes."""

    spec: ModelSpec
    tokenizer: Tokenizer | None
    generation_config: Mapping[str, Any]
    hf_config: Mapping[str, Any]


def read_parts(model: str, options: Options) -> ModelParts:
    """Find the model and read everything but its weights."""
    _check_given(model, options)
    files = find_files(model, options)
    said = {**files.config, **(options.hf_overrides or {})}
    if choose_pooler(files, said, options, encoder_family(said)).tasks:
        raise NotSupported(
            f"data_parallel_size={options.data_parallel_size} of a model that embeds or classifies "
            "is not built. Run one LLM per device, each on its own share of the texts."
        )
    spec = own_spec(files, options)
    hf_config = said if files.config else {**config_of(spec), **said}
    return ModelParts(
        spec, load_tokenizer(files, options), generation_config_of(files, options), hf_config
    )


def find_files(model: str, options: Options) -> ModelFiles:
    files = locate(
        model,
        revision=options.revision,
        download_dir=options.download_dir,
        token=options.hf_token,
        weights=options.load_format != "dummy",
        trust_remote_code=options.trust_remote_code,
    )
    check_quantisation(files, options)
    return files


def _head(
    pooler: PoolerSpec,
    files: ModelFiles,
    spec: AnySpec,
    tokenizer: Tokenizer | None,
    *,
    dummy: bool,
) -> Head:
    from quire.pooling.head import load_head  # torch

    def token_id(token: str) -> int | None:
        return None if tokenizer is None else tokenizer.backend.token_to_id(token)

    return load_head(pooler, files, spec.hidden_size, token_id, dummy=dummy)


def _fitted(config: EngineConfig, facts: ExecutorFacts) -> EngineConfig:
    """The config with max_model_len limited to what the KV cache holds."""
    most = facts.most_tokens(config.block_size, config.max_model_len)
    if most >= config.max_model_len:
        return config
    line = f"max_model_len {most}: what the KV cache holds of the model's {config.max_model_len}"
    return replace(config, max_model_len=most, notes=(*config.notes, line))


def _stored(
    model: str, planned: AnySpec | FallbackPlan, options: Options, path: str | None
) -> Iterator[tuple[str, Tensor]]:
    """The weights of the model's files, or of those at another path, one after another."""
    from quire.executor.cpu.local import NO_EXCHANGE
    from quire.weights.load import stored_weights

    if isinstance(planned, EncoderSpec):
        raise NotSupported("an encoder takes no other weights once it is built: make a new LLM.")
    if not isinstance(planned, ModelSpec):
        raise NotSupported(NO_EXCHANGE)
    files = locate(
        model if path is None else path,
        revision=options.revision if path is None else None,
        download_dir=options.download_dir,
        token=options.hf_token,
    )
    yield from stored_weights(files, planned)


def _check_given(model: object, options: Options) -> None:
    """Refuse bad arguments before anything is fetched or loaded."""
    if options.chat_template:
        read_template(options.chat_template)
    if not isinstance(model, (str, os.PathLike)) or not str(model).strip():
        raise InvalidOption(
            f"model must be a path, a Hub id or an alias, not {model!r}. "
            'For a first try: LLM("smollm2").',
            parameter="model",
            value=model,
        )


def _executor(
    files: ModelFiles,
    planned: ModelSpec | FallbackPlan,
    options: Options,
    media: ModelMedia | None,
) -> tuple[EngineConfig, ModelExecutor]:
    if options.tensor_parallel_size > 1:
        return ranks_executor(files, planned, options, media)
    if not isinstance(planned, ModelSpec):
        return _fallback_executor(files, planned, options)
    spec = planned
    with ExitStack() as unwanted:
        compiling = begin_compiling(spec, options)
        if compiling is not None:
            unwanted.callback(compiling.end)
        with short_spins():
            from quire.executor.probe import device_facts  # torch, which takes seconds

        facts = device_facts(options.device)
        if facts.device == "cpu":
            return _cpu_executor(files, spec, options, facts, media)
        made = _gpu_executor(files, spec, options, facts, compiling, media)
        unwanted.pop_all()  # from here on the executor ends it
        return made


def _fallback_executor(
    files: ModelFiles, plan: FallbackPlan, options: Options
) -> tuple[EngineConfig, ModelExecutor]:
    from quire.executor.cpu.local import DTYPES, LocalExecutor
    from quire.executor.probe import device_facts
    from quire.models.decoder import head_shape

    facts = device_facts(options.device)
    config = resolve_fallback(options, plan, facts, stored=weight_facts(files).stored)
    read = partial(load_fallback, files, plan, config)
    if facts.device == "cpu":
        return config, LocalExecutor(config, plan.spec, read(), read_again=read)
    from quire.backends.choose import kernels_for
    from quire.executor.cuda.executor import CudaExecutor
    from quire.executor.cuda.inline import InlineExecutor
    from quire.models.fallback.build import why_one_by_one

    loaded, why = read(), plan.seen.why_rows
    if plan.seen.calls:
        shape = head_shape(plan.spec, config.block_size, DTYPES[config.dtype])
        why = why_one_by_one(loaded, kernels_for("cuda", shape, batch_invariant=False), shape)
    if not why:
        tried = replace(loaded, is_tried=True)
        return config, CudaExecutor(config, plan.spec, tried, read_again=read)
    plan = replace(plan, seen=replace(plan.seen, calls=(), why_rows=why))
    config = inline_config(config, plan)
    read = partial(load_fallback, files, plan, config)
    loaded = replace(loaded, seen=plan.seen)
    return config, InlineExecutor(config, plan.spec, loaded, read_again=read)


def _gpu_executor(
    files: ModelFiles,
    spec: ModelSpec,
    options: Options,
    facts: DeviceFacts,
    compiling: Compiling | None,
    media: ModelMedia | None,
) -> tuple[EngineConfig, ModelExecutor]:
    config = resolve(options, spec, facts, weight_facts(files))
    hashing = hash_triton()
    from quire.executor.cuda.executor import CudaExecutor
    from quire.executor.cuda.fp8_kv import check_fp8
    from quire.executor.precompile.warmup import Warmup
    from quire.session.gpu_weights import load_gpu_weights

    check_fp8(config)
    warmup = Warmup(config, spec, compiling, hashing)
    read = partial(load_gpu_weights, files, spec, config)
    tower = None if media is None else partial(media.tower, config)
    return config, CudaExecutor(config, spec, read(), warmup, read_again=read, tower=tower)


def _cpu_executor(
    files: ModelFiles,
    spec: ModelSpec,
    options: Options,
    facts: DeviceFacts,
    media: ModelMedia | None,
) -> tuple[EngineConfig, ModelExecutor]:
    from quire.executor.cpu.local import LocalExecutor
    from quire.session.cpu_weights import load_cpu_weights, with_kernels
    from quire.session.int8_default import int8_fits

    facts = with_kernels(facts, spec, options)
    default = int8_fits(files, spec, options, steady=facts.steady_kernels)
    config = resolve(options, spec, facts, replace(weight_facts(files), int8_fits=default.why))
    weights = load_cpu_weights(files, spec, config, at_hand=default.weights)
    read_again = partial(load_cpu_weights, files, spec, config)
    tower = None if media is None else partial(media.tower, config)
    return config, LocalExecutor(config, spec, weights, read_again=read_again, tower=tower)


def generation_config_of(files: ModelFiles, options: Options) -> dict[str, Any]:
    from quire.weights.hf_config import read_generation_config

    source = options.generation_config
    if source == "auto":
        found = dict(files.generation_config)
    elif source == "vllm":
        found = {}
    else:
        found = dict(read_generation_config(Path(source)))
    return {**found, **(options.override_generation_config or {})}


def load_tokenizer(files: ModelFiles, options: Options) -> Tokenizer | None:
    """The tokenizer of the model, or that of an option; the same for its chat template."""
    from quire.inputs.gguf_tokenizer import load_gguf_tokenizer
    from quire.inputs.hf_tokenizer import load_hf_tokenizer

    if options.skip_tokenizer_init:
        return None
    if options.tokenizer is not None and options.tokenizer != files.name:
        files = locate(
            options.tokenizer,
            revision=options.tokenizer_revision,
            download_dir=options.download_dir,
            token=options.hf_token,
            weights=False,
        )
    if files.kind == "gguf":
        tokenizer = load_gguf_tokenizer(files.gguf.metadata)
    else:
        tokenizer = load_hf_tokenizer(files.path)
    if options.chat_template:
        # Set here, because LLMs, jobs, servers and pipelines all read the template from it.
        tokenizer.chat_templates = {"default": read_template(options.chat_template)}
    tokenizer.special_tokens_in_messages = options.special_tokens_in_messages
    return tokenizer
