"""From a model's name to a running engine: files, spec, decisions, weights, executor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.config import EngineConfig
from quire.errors import InvalidOption, InvalidParams
from quire.executor.compiling import Compiling, begin_compiling, hash_triton
from quire.executor.executor import Executor, ExecutorFacts
from quire.executor.spinning import short_spins
from quire.executor.waking import wake_gpu
from quire.inputs.tokenizer import Tokenizer
from quire.notes import note
from quire.options import DeviceFacts, Options, resolve
from quire.sampling_params import SamplingParams
from quire.spec import ModelSpec
from quire.weights.source import ModelFiles, locate
from quire.weights.tied import with_stored_head

# What a generation_config.json may set of a request's parameters, and our name for it.
GENERATION_DEFAULTS = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to run."""

    name: str
    spec: ModelSpec
    config: EngineConfig
    executor: Executor
    facts: ExecutorFacts
    tokenizer: Tokenizer | None
    generation_config: Mapping[str, Any]

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """What ends an answer as the end of the sequence."""
        if self.tokenizer is not None and self.tokenizer.eos_ids:
            return self.tokenizer.eos_ids
        return self.spec.eos_ids[:1]

    @property
    def more_eos_ids(self) -> tuple[int, ...]:
        """What else the model's files say ends an answer."""
        return (*self.spec.eos_ids, *_eos_of(self.generation_config))

    def default_params(self) -> SamplingParams:
        """What the model's makers recommend; SamplingParams() where they say nothing."""
        given = {
            ours: self.generation_config[theirs]
            for theirs, ours in GENERATION_DEFAULTS.items()
            if self.generation_config.get(theirs) is not None
        }
        try:
            return SamplingParams(**given)
        except InvalidParams as error:
            raise InvalidOption(
                f"the model's generation_config.json sets {error.parameter} to {error.value!r}: "
                f'{error.message} Pass generation_config="vllm" to leave it aside.',
                parameter="generation_config",
                value=error.value,
            ) from error


def load(model: str, options: Options) -> LoadedModel:
    """Find the model, decide how to run it, and start the executor."""
    _check_name(model)
    wake_gpu(options.device)
    dummy = options.load_format == "dummy"
    files = locate(
        model,
        revision=options.revision,
        download_dir=options.download_dir,
        token=options.hf_token,
        weights=not dummy,
        trust_remote_code=options.trust_remote_code,
    )
    spec = files.spec(options.hf_overrides)
    if not dummy:
        spec = with_stored_head(files, spec)
    generation_config = _generation_config(files, options)
    # The tokenizer is built by Rust and Python while the weights are read by torch.
    with ThreadPoolExecutor(1) as aside:
        reading = aside.submit(_tokenizer, files, options)
        config, executor = _executor(files, spec, options)
        facts = executor.start()
        tokenizer = reading.result()
    for line in (*config.notes, *facts.notes):
        note(line)
    return LoadedModel(model, spec, config, executor, facts, tokenizer, generation_config)


def _check_name(model: object) -> None:
    if not isinstance(model, (str, os.PathLike)) or not str(model).strip():
        raise InvalidOption(
            f"model must be a path, a Hub id or an alias, not {model!r}. "
            'For a first try: LLM("smollm2").',
            parameter="model",
            value=model,
        )


def _executor(
    files: ModelFiles, spec: ModelSpec, options: Options
) -> tuple[EngineConfig, Executor]:
    with ExitStack() as unwanted:
        compiling = begin_compiling(spec, options)
        if compiling is not None:
            unwanted.callback(compiling.end)
        with short_spins():
            from quire.executor.probe import device_facts  # torch, which takes seconds

        facts = device_facts(options.device)
        if facts.device == "cpu":
            return _cpu_executor(files, spec, options, facts)
        made = _gpu_executor(files, spec, options, facts, compiling)
        unwanted.pop_all()  # from here on the executor ends it
        return made


def _gpu_executor(
    files: ModelFiles,
    spec: ModelSpec,
    options: Options,
    facts: DeviceFacts,
    compiling: Compiling | None,
) -> tuple[EngineConfig, Executor]:
    config = resolve(options, spec, facts)
    hashing = hash_triton()
    from quire.executor.cuda import CudaExecutor, check_fp8
    from quire.executor.warmup import Warmup
    from quire.session.gpu_weights import load_gpu_weights

    check_fp8(config)
    warmup = Warmup(config, spec, compiling, hashing)
    return config, CudaExecutor(config, spec, load_gpu_weights(files, spec, config), warmup)


def _cpu_executor(
    files: ModelFiles, spec: ModelSpec, options: Options, facts: DeviceFacts
) -> tuple[EngineConfig, Executor]:
    from quire.executor.local import LocalExecutor
    from quire.session.cpu_weights import load_cpu_weights, with_kernels
    from quire.session.int8_default import int8_fits

    facts = with_kernels(facts, spec, options)
    default = int8_fits(files, spec, options, steady=facts.steady_kernels)
    config = resolve(options, spec, facts, int8_fits=default.why)
    weights = load_cpu_weights(files, spec, config, at_hand=default.weights)
    return config, LocalExecutor(config, spec, weights)


def _tokenizer(files: ModelFiles, options: Options) -> Tokenizer | None:
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
        return load_gguf_tokenizer(files.gguf.metadata)
    return load_hf_tokenizer(files.path)


def _generation_config(files: ModelFiles, options: Options) -> dict[str, Any]:
    from quire.weights.hf_config import read_generation_config

    source = options.generation_config
    if source == "auto":
        found = dict(files.generation_config)
    elif source == "vllm":
        found = {}
    else:
        found = dict(read_generation_config(Path(source)))
    return {**found, **(options.override_generation_config or {})}


def _eos_of(generation_config: Mapping[str, Any]) -> tuple[int, ...]:
    eos = generation_config.get("eos_token_id")
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)
