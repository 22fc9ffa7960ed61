"""quire generates text from language models in bulk: all your prompts in, one result per
prompt out. Names are imported when first used, so `import quire` costs nothing."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if os.name == "nt":
    raise ImportError("quire needs a POSIX system: on Windows, install and run it inside WSL")

from quire.base.version import __version__, __version_tuple__
from quire.compat import serve_script_names

if TYPE_CHECKING:
    from quire.compat.not_built import *  # noqa: F403
    from quire.errors import *  # noqa: F403
    from quire.inputs import PromptType as PromptType
    from quire.inputs import TextPrompt as TextPrompt
    from quire.inputs import TokensPrompt as TokensPrompt
    from quire.jobs.job import Job as Job
    from quire.jobs.job import JobReport as JobReport
    from quire.llm import LLM as LLM
    from quire.outputs import *  # noqa: F403
    from quire.params.lora import LoRARequest as LoRARequest
    from quire.params.pooling import PoolingParams as PoolingParams
    from quire.sampling_params import *  # noqa: F403
    from quire.session.async_llm import AsyncLLM as AsyncLLM
    from quire.session.async_llm import AsyncLLMEngine as AsyncLLMEngine
    from quire.session.engine_args import AsyncEngineArgs as AsyncEngineArgs
    from quire.session.engine_args import EngineArgs as EngineArgs
    from quire.session.llm_engine import LLMEngine as LLMEngine

_HOME = {
    "llm": "LLM",
    "session.async_llm": "AsyncLLM AsyncLLMEngine",
    "session.llm_engine": "LLMEngine",
    "sampling_params": "SamplingParams BeamSearchParams StructuredOutputsParams "
    "GuidedDecodingParams RepetitionDetectionParams RequestOutputKind",
    "outputs": "RequestOutput CompletionOutput RequestStateStats Logprob FlatLogprobs "
    "PromptLogprobs SampleLogprobs BeamSearchOutput BeamSearchSequence ContinuationScore "
    "PoolingOutput PoolingRequestOutput EmbeddingOutput EmbeddingRequestOutput "
    "ClassificationOutput ClassificationRequestOutput ScoringOutput ScoringRequestOutput",
    "params.pooling": "PoolingParams",
    "params.lora": "LoRARequest",
    "inputs": "PromptType TextPrompt TokensPrompt",
    "session.engine_args": "EngineArgs AsyncEngineArgs",
    "jobs.job": "Job JobReport",
    "compat.model_registry": "ModelRegistry",
    "compat.not_built": "initialize_ray_cluster",
    "errors": "QuireError InvalidRequest InvalidParams InvalidPrompt PromptTooLong InvalidGrammar "
    "InvalidAdapter AdapterFailed NoTokenLeft "
    "InvalidOption UnknownOption NotSupported ModelError ModelNotFound CorruptModel "
    "UnsupportedModel RowError InvalidLogits GrammarFailed ProcessorFailed MediumFailed "
    "DoesNotFit BatchError InvalidBatch EngineError NotEnoughMemory RankDied EngineClosed "
    "EngineAsleep EngineBusy JobError JobChanged JobLocked JobStopped CorruptJob "
    "Interrupted QuireWarning",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}
__all__ = ["__version__", "__version_tuple__", *_MODULE_OF]

serve_script_names()


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    value = getattr(import_module(f"quire.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # the next look-up finds it at once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
