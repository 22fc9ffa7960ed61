"""Module names that scripts import from vLLM; each holds names that are defined elsewhere in quire.

They are listed in a table and are no modules among quire's own, so that readers of quire do not
take them for parts of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from quire.compat.environment import DEFAULTS

if TYPE_CHECKING:
    from importlib.abc import Loader

_GROUPS = "cleanup_dist_env_and_memory destroy_distributed_environment destroy_model_parallel"
_NOT_BUILT = "compat.not_built"
_COMPILED = "CUDAGraphMode CompilationLevel CompilationMode"
_MADE_PROMPTS = (
    "build_explicit_enc_dec_prompt to_enc_dec_tuple_list token_inputs zip_enc_dec_prompts"
)
_NETWORK = "get_distributed_init_method get_ip get_open_port"
_TOKENIZERS = "cached_get_tokenizer=get_tokenizer get_tokenizer"
_PROCESSORS = "BatchUpdate LogitsProcessor MoveDirectionality"
# Modules of quire that scripts also know from vLLM, and the names in them that are elsewhere.
OURS = {
    "config": {
        _NOT_BUILT: "CacheConfig DeviceConfig LoRAConfig LoadConfig MultiModalConfig "
        "ObservabilityConfig ParallelConfig SchedulerConfig SpeculativeConfig",
        "compat.script_parts": _COMPILED,
        "session.model_config": "ModelConfig",
    },
    "inputs": {"compat.prompt_kinds": _MADE_PROMPTS},
    "logprobs": {},
    "outputs": {},
    "sampling_params": {"compat.logits_process": "LogitsProcessor"},
}
# For each module the home of its names; OTHER=NAME: scripts know NAME as OTHER.
MODULES = {
    "assets.audio": {_NOT_BUILT: "AudioAsset"},
    "assets.image": {_NOT_BUILT: "ImageAsset"},
    "assets.video": {_NOT_BUILT: "VideoAsset"},
    "beam_search": {"outputs": "BeamSearchOutput BeamSearchSequence"},
    "config.compilation": {
        "compat.script_parts": _COMPILED,
        "config": "CompilationConfig",
    },
    "config.model": {"session.model_config": "ModelConfig"},
    "config.kv_transfer": {"config": "KVTransferConfig"},
    "config.pooler": {"params.pooling": "PoolerConfig"},
    "config.structured_outputs": {"params.structured": "StructuredOutputsConfig"},
    "distributed": {"compat.parallel_state": _GROUPS},
    "distributed.device_communicators.pynccl": {_NOT_BUILT: "PyNcclCommunicator"},
    "distributed.parallel_state": {"compat.parallel_state": _GROUPS, _NOT_BUILT: "get_world_group"},
    "distributed.utils": {_NOT_BUILT: "StatelessProcessGroup"},
    "distributed.weight_transfer.base": {
        _NOT_BUILT: "WeightTransferInitRequest WeightTransferUpdateRequest"
    },
    "distributed.weight_transfer.ipc_engine": {
        _NOT_BUILT: "IPCTrainerSendWeightsArgs IPCWeightTransferEngine"
    },
    "distributed.weight_transfer.nccl_engine": {
        _NOT_BUILT: "NCCLTrainerSendWeightsArgs NCCLWeightTransferEngine"
    },
    "engine.arg_utils": {"session.engine_args": "AsyncEngineArgs EngineArgs"},
    "engine.async_llm_engine": {
        "errors": "AsyncEngineDeadError=EngineError",
        "session.async_llm": "AsyncLLMEngine",
    },
    "engine.llm_engine": {"session.llm_engine": "LLMEngine"},
    "entrypoints.chat_utils": {
        "compat.chat_template": "ChatCompletionMessageParam ConversationMessage load_chat_template "
        "resolve_hf_chat_template=resolve_chat_template"
    },
    "entrypoints.llm": {
        "compat.script_parts": "Counter UsageContext init_logger",
        "inputs": "PromptType TextPrompt TokensPrompt",
        "llm": "LLM",
        "outputs": "BeamSearchOutput BeamSearchSequence ClassificationRequestOutput "
        "EmbeddingRequestOutput PoolingRequestOutput RequestOutput ScoringRequestOutput",
        "params.lora": "LoRARequest",
        "params.pooling": "PoolingParams",
        "sampling_params": "BeamSearchParams GuidedDecodingParams RequestOutputKind SamplingParams "
        "StructuredOutputsParams",
    },
    "envs": {"compat.environment": " ".join(DEFAULTS)},
    "exceptions": {
        "errors": "VLLMError=QuireError VLLMNotFoundError=ModelNotFound "
        "VLLMValidationError=InvalidRequest"
    },
    "inputs.data": {
        "compat.prompt_kinds": _MADE_PROMPTS,
        "inputs": "EmbedsPrompt PromptInputs=PromptType PromptType SingletonPrompt TextPrompt "
        "TokensPrompt",
    },
    "inputs.llm": {"inputs": "EmbedsPrompt MultiModalDataDict PromptType TextPrompt TokensPrompt"},
    "logger": {"compat.script_parts": "init_logger"},
    "logits_process": {"compat.logits_process": "LogitsProcessor"},
    "lora.request": {"params.lora": "LoRARequest"},
    "model_executor": {"compat.script_parts": "set_random_seed"},
    "model_executor.models": {"compat.model_registry": "ModelRegistry"},
    "model_executor.models.registry": {"compat.model_registry": "ModelRegistry"},
    "model_executor.parallel_utils.parallel_state": {"compat.parallel_state": _GROUPS},
    "model_executor.utils": {"compat.script_parts": "set_random_seed"},
    "multimodal": {
        _NOT_BUILT: "MULTIMODAL_REGISTRY",
        "inputs": "MultiModalDataDict MultiModalUUIDDict",
    },
    "multimodal.image": {"compat.pictures": "convert_image_mode"},
    "multimodal.inputs": {"inputs": "MultiModalDataDict MultiModalUUIDDict"},
    "multimodal.utils": {
        _NOT_BUILT: "fetch_audio fetch_image fetch_video",
        "compat.pictures": "encode_image_base64 encode_image_url",
    },
    "platforms": {"compat.script_parts": "current_platform"},
    "pooling_params": {"params.pooling": "PoolingParams"},
    "renderers.hf": {"compat.chat_template": "resolve_chat_template"},
    "sequence": {
        "logprobs": "Logprob PromptLogprobs SampleLogprobs",
        "outputs": "RequestMetrics=RequestStateStats",
    },
    "tokenizers": {"compat.tokenizers": f"TokenizerLike {_TOKENIZERS}"},
    "transformers_utils.tokenizer": {
        "compat.tokenizers": f"AnyTokenizer=TokenizerLike {_TOKENIZERS}"
    },
    "usage.usage_lib": {"compat.script_parts": "UsageContext"},
    "utils": {
        "compat.script_parts": "Counter FlexibleArgumentParser cuda_device_count_stateless "
        f"{_NETWORK} random_uuid set_random_seed"
    },
    "utils.argparse_utils": {"compat.script_parts": "FlexibleArgumentParser"},
    "utils.counter": {"compat.script_parts": "Counter"},
    "utils.network_utils": {"compat.script_parts": _NETWORK},
    "utils.print_utils": {"compat.script_parts": "print_embeddings"},
    "utils.torch_utils": {"compat.script_parts": "cuda_device_count_stateless set_random_seed"},
    "v1.engine.async_llm": {
        "session.engine_args": "AsyncEngineArgs",
        "session.async_llm": "AsyncLLM",
    },
    "v1.engine.exceptions": {"errors": "EngineDeadError=EngineError EngineGenerateError=RowError"},
    "v1.engine.llm_engine": {"session.llm_engine": "LLMEngine"},
    "v1.metrics.reader": {"session.metrics": "Counter Gauge Histogram Metric Vector"},
    "v1.sample.logits_processor": {
        "sampling.batch_interface": f"{_PROCESSORS} AdapterLogitsProcessor RequestLogitsProcessor "
        "process_dict_updates"
    },
    "v1.sample.logits_processor.builtin": {"sampling.batch_interface": "process_dict_updates"},
    "v1.sample.logits_processor.interface": {
        "sampling.batch_interface": f"{_PROCESSORS} AddedRequest MovedRequest RemovedRequest"
    },
    "version": {"base.version": "__version__ __version_tuple__"},
    "worker.worker": {_NOT_BUILT: "Worker"},
}


class ScriptNames:
    """Finds and makes `quire.NAME` for the modules above and the packages that contain them.

    Where `vllm` is another name of quire, `vllm.NAME` is `quire.NAME`, the same module, so a class
    has one identity under both names. This has the methods of a finder and a loader, but does not
    inherit from importlib.abc, whose import loads half of the standard library."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package == "vllm" and name and is_vllm():
            return ModuleSpec(fullname, cast("Loader", _OtherName()))
        if package != "quire":
            return None
        is_package = any(module.startswith(f"{name}.") for module in MODULES)
        if name not in MODULES and not is_package and name not in OURS:
            return None
        if name not in MODULES and (own := PathFinder.find_spec(fullname, path)) is not None:
            # One of quire's modules that scripts know as a package: its own names are still found.
            # As a package it lets finders be asked for names that it lacks, and so NotHere.
            own.submodule_search_locations = own.submodule_search_locations or []
            if OURS.get(name):
                own.loader = cast("Loader", _WithMore(own.loader, OURS[name]))
            return own
        return ModuleSpec(fullname, cast("Loader", self), is_package=True)

    def create_module(self, spec: ModuleSpec) -> None:
        """Make a module of the usual kind."""

    def exec_module(self, module: ModuleType) -> None:
        homes = MODULES.get(module.__name__.removeprefix("quire."), {})
        for home, names in homes.items():
            for name in names.split():
                known, _, own = name.rpartition("=")
                found = getattr(import_module(f"quire.{home}"), own)
                setattr(module, known or own, found)

    def find_distributions(self, context: Any) -> Iterator[Any]:
        """The metadata of `vllm`, for importlib.metadata, where that is a name of quire."""
        if context.name in (None, "vllm") and is_vllm():
            from quire.compat.vllm_metadata import VllmMetadata

            yield VllmMetadata()


class _WithMore:
    """Loads one of quire's modules and adds names from other modules, which are imported when first
    used: the module is below them and cannot import them itself."""

    def __init__(self, loader: Any, homes: Mapping[str, str]) -> None:
        self._loader = loader
        self._home_of = {name: home for home, names in homes.items() for name in names.split()}

    def create_module(self, spec: ModuleSpec) -> None:
        """Make a module of the usual kind."""

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        vars(module)["__getattr__"] = self._more

    def _more(self, name: str) -> Any:
        if name not in self._home_of:
            raise AttributeError(name)
        return getattr(import_module(f"quire.{self._home_of[name]}"), name)


class _OtherName:
    """Loads `vllm.NAME` by replacing it with `quire.NAME`."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Make a module of the usual kind, which is replaced."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        sys.modules[name] = import_module(f"quire{name.removeprefix('vllm')}")


class NotHere:
    """The last finder: raises an error for modules of quire that no other finder found.

    `from quire.utils import name` asks it, too, because the modules above are packages, and so
    gets this error instead of "cannot import name"."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        package, _, name = fullname.partition(".")
        # importlib.util.find_spec, two frames up, only asks whether there is one: None means no.
        is_asked = sys._getframe(2).f_globals.get("__name__") == "importlib.util"
        if package == "quire" and not is_asked:
            # Without `name=`, because a from-import would hide an error that has it.
            raise ModuleNotFoundError(
                f"{'vllm' if is_vllm() else 'quire'}.{name} is not among what quire has for "
                "programs written for vLLM: docs/clients.md lists the modules"
            )


def is_vllm() -> bool:
    """Whether `vllm` means quire here: `sys.modules["vllm"] = quire`, or compat.as_vllm."""
    vllm = sys.modules.get("vllm")
    return vllm is not None and (
        vllm is sys.modules.get("quire") or type(vllm).__name__ == "QuireAsVllm"
    )


def serve_script_names() -> None:
    """Called at import. `import quire` again, after a test removed it, adds no second finder."""
    if not any(type(finder).__name__ == "ScriptNames" for finder in sys.meta_path):
        sys.meta_path.insert(0, ScriptNames())
        sys.meta_path.append(NotHere())
