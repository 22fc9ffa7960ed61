"""quire in a pipeline of Ray Data, under the names of Ray Data LLM.

    from quire.ray import build_processor, vLLMEngineProcessorConfig

replaces `from ray.data.llm import ...`: the fields, the keys of rows and the columns of results are
the same. Ray is imported when a processor is used.
"""

from __future__ import annotations

from quire.ray.config import vLLMEngineProcessorConfig
from quire.ray.processor import Processor, build_llm_processor, build_processor
from quire.ray.stages import (
    ChatTemplateStageConfig,
    DetokenizeStageConfig,
    PrepareMultimodalStageConfig,
    TokenizerStageConfig,
)

__all__ = [
    "ChatTemplateStageConfig",
    "DetokenizeStageConfig",
    "PrepareMultimodalStageConfig",
    "Processor",
    "TokenizerStageConfig",
    "build_llm_processor",
    "build_processor",
    "vLLMEngineProcessorConfig",
]
