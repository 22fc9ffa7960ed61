"""Objects that scripts read beside an LLM's results, under vLLM's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from quire.config import SchedulerFacts
from quire.session.lists_attributes import ListsAttributes
from quire.session.metrics import Metric
from quire.session.model_config import ModelConfig
from quire.session.step_methods import StepMethods
from quire.session.workers import EngineCoreView, ExecutorView, RestingView

if TYPE_CHECKING:
    from quire.session.engine_args import EngineArgs
    from quire.session.session import Session


class MadeOfArgs:
    """Class methods of vLLM that make an object from a model and options."""

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, *ignored: Any, **more: Any) -> Self:
        """Make one with the options of an EngineArgs; other arguments (logging) are ignored."""
        make: Any = cls
        made: Self = make(**engine_args.given())
        return made

    @classmethod
    def from_vllm_config(cls, vllm_config: Any, *ignored: Any, **more: Any) -> Self:
        """Make one from the result of `EngineArgs.create_engine_config`."""
        from quire.session.engine_args import given_args  # takes a while to import

        return cls.from_engine_args(given_args(vllm_config))


@dataclass(frozen=True, slots=True)
class CacheConfigView(ListsAttributes):
    """`vllm_config.cache_config`."""

    block_size: int
    num_gpu_blocks: int
    enable_prefix_caching: bool
    gpu_memory_utilization: float


@dataclass(frozen=True, slots=True)
class ParallelConfigView(ListsAttributes):
    """`vllm_config.parallel_config`; `world_size` counts the ranks of one replica."""

    tensor_parallel_size: int
    data_parallel_size: int
    pipeline_parallel_size: int = 1

    @property
    def world_size(self) -> int:
        return self.tensor_parallel_size


@dataclass(frozen=True, slots=True)
class VllmConfigView(ListsAttributes):
    """`llm.llm_engine.vllm_config`, as far as scripts look into it."""

    model_config: ModelConfig
    cache_config: CacheConfigView
    scheduler_config: SchedulerFacts
    parallel_config: ParallelConfigView

    @classmethod
    def of(cls, session: Session) -> VllmConfigView:
        config, facts = session.model.config, session.model.facts
        cache = CacheConfigView(
            config.block_size,
            facts.num_blocks,
            config.enable_prefix_caching,
            config.gpu_memory_utilization,
        )
        ranks = ParallelConfigView(config.tensor_parallel_size, session.num_replicas)
        return cls(ModelConfig.of(session), cache, SchedulerFacts.of(config), ranks)


@dataclass(frozen=True, slots=True)
class SpeculationView:
    """How many tokens were guessed since the LLM was made, and how many of them were right."""

    num_guessed: int
    num_accepted: int


class RequestCounter:
    """`llm.request_counter`: request ids that no other request of the LLM has."""

    def __init__(self, session: Session) -> None:
        self._intake = session.intake

    @property
    def counter(self) -> int:
        """The id of the next request."""
        return self._intake.num_made

    def __next__(self) -> int:
        return self._intake.take_numbers(1)


class EngineView(StepMethods, RestingView, ListsAttributes):
    """`llm.llm_engine`, as far as scripts look into it."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.model_config = ModelConfig.of(session)
        guesses = session.engine.scheduler.guesses
        self.speculation = SpeculationView(guesses.num_guessed, guesses.num_accepted)
        self.engine_core = EngineCoreView(session)

    @property
    def vllm_config(self) -> VllmConfigView:
        return VllmConfigView.of(self._session)

    def get_vllm_config(self) -> VllmConfigView:
        return self.vllm_config

    @property
    def cache_config(self) -> CacheConfigView:
        return self.vllm_config.cache_config

    @property
    def parallel_config(self) -> ParallelConfigView:
        return self.vllm_config.parallel_config

    @property
    def scheduler_config(self) -> SchedulerFacts:
        return self.vllm_config.scheduler_config

    @property
    def tokenizer(self) -> Any:
        return self._session.hf_tokenizer()

    def get_tokenizer(self, lora_request: Any = None) -> Any:
        return self._session.hf_tokenizer()

    def is_sleeping(self) -> bool:
        return self._session.is_sleeping

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        return self._session.forget_prefixes()

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return self.model_executor.collective_rpc(method, *args, **kwargs)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return self._session.supported_tasks

    def get_metrics(self) -> list[Metric]:
        return self._session.read_metrics()

    def do_log_stats(self) -> None:
        """Does nothing: quire logs no statistics; `get_metrics` returns them."""

    def reset_mm_cache(self) -> None:
        self._session.forget_media()

    def apply_model(self, func: Callable[[Any], Any]) -> list[Any]:
        return self.collective_rpc(lambda worker: func(worker.get_model()))

    def get_model_config(self) -> ModelConfig:
        return self.model_config

    @property
    def model_executor(self) -> ExecutorView:
        """The executor view. Deleting this attribute closes the LLM; then there is none."""
        if self._session.is_closed:
            raise AttributeError("model_executor: this LLM was closed")
        return ExecutorView(self._session)

    @model_executor.deleter
    def model_executor(self) -> None:
        self._session.close()
