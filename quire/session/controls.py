"""The methods of LLM that do not generate: properties, metrics, sleeping, closing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Self

from quire.errors import InvalidRequest, NotSupported
from quire.sampling_params import SamplingParams
from quire.session.lists_attributes import ListsAttributes
from quire.session.metrics import Metric
from quire.session.session import KvCacheView, Session
from quire.session.views import EngineView, RequestCounter
from quire.session.workers import ExecutorView


class LLMControls(ListsAttributes):
    """Methods that work on the session of the LLM."""

    _session: Session

    def __reduce__(self) -> NoReturn:
        raise NotSupported(
            "an LLM holds a model in memory, and is neither copied nor pickled: make one in each "
            "process, and pass prompts and outputs between them."
        )

    def get_tokenizer(self) -> Any:
        """The tokenizer as a `transformers.PreTrainedTokenizerFast`."""
        return self._session.hf_tokenizer()

    def set_tokenizer(self, tokenizer: Any) -> None:
        """Use another tokenizer of Transformers from here on; it needs a fast one."""
        self._session.set_tokenizer(tokenizer)

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters the model's makers recommend, fresh at each call."""
        return self._session.model.default_params()

    def get_world_size(self, include_dp: bool = True) -> int:
        """How many devices compute together; with `include_dp`, of all replicas."""
        ranks: int = self._session.model.config.tensor_parallel_size
        return ranks * self._session.num_replicas if include_dp else ranks

    def get_metrics(self) -> list[Metric]:
        """Everything counted since the LLM was made: counters, gauges and histograms with vLLM's
        names (the types are in `quire.v1.metrics.reader`)."""
        return self._session.read_metrics()

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget every cached prefix."""
        return self._session.forget_prefixes()

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Give memory back until `wake_up`: the KV cache and, on a GPU, the weights.

        Level 1 keeps the weights in main memory; level 2 drops them, and waking reads the model's
        files again; level 0 frees nothing. Calls in between raise EngineAsleep. `mode`, which says
        what happens to running requests, has no effect: every call runs to its end first.
        """
        self._session.sleep(level)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Wake all parts that sleep, or those in `tags`: "weights" before "kv_cache"."""
        self._session.wake_up(tags)

    @property
    def is_sleeping(self) -> bool:
        """Whether any part still sleeps."""
        return self._session.is_sleeping

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of the one worker by its name ("reload_weights"), or a function with the
        worker: `lambda worker: worker.model_runner.model.load_weights(named_tensors)`."""
        return ExecutorView(self._session).collective_rpc(method, timeout, args, kwargs)

    def apply_model(self, func: Callable[[Any], Any]) -> list[Any]:
        """[func(model)], where the model has `load_weights(named tensors)`."""
        if not callable(func):
            raise InvalidRequest(
                f"apply_model takes a function of the model, not a {type(func).__name__}",
                parameter="func",
            )
        return self.collective_rpc(lambda worker: func(worker.get_model()))

    @property
    def llm_engine(self) -> EngineView:
        return EngineView(self._session)

    @property
    def request_counter(self) -> RequestCounter:
        return RequestCounter(self._session)

    @property
    def model_config(self) -> Any:
        return self.llm_engine.model_config

    @property
    def kv_cache(self) -> KvCacheView:
        """Size and peak use of the KV cache, in blocks."""
        return self._session.kv_cache()

    def reset_mm_cache(self) -> None:
        """Forget encoded media; media that come next are encoded again."""
        self._session.forget_media()

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        return self._session.supported_tasks

    def close(self) -> None:
        """Free the model's memory. It may be called twice; the LLM cannot be used afterwards."""
        if session := getattr(self, "_session", None):
            session.close()

    def shutdown(self, timeout: float | None = None) -> None:
        """The same as `close`."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def not_built(name: str, way_out: str) -> Callable[..., NoReturn]:
    """A method `name` that raises NotSupported."""

    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotSupported(f"{type(self).__name__}.{name} is not built. {way_out}")

    method.__name__ = name
    method.__doc__ = f"Not built. {way_out}"
    return method


_WEIGHTS = "Exchange weights by name: collective_rpc with a function that calls load_weights."
PROFILE = "Use torch.profiler around generate()."


class NotBuiltMethods:
    """Methods of vLLM's LLM that raise NotSupported."""

    start_profile = not_built("start_profile", PROFILE)
    stop_profile = not_built("stop_profile", PROFILE)
    preprocess_chat = not_built(
        "preprocess_chat", "Use chat(), or get_tokenizer().apply_chat_template()."
    )
    release_kv_cache_memory = not_built("release_kv_cache_memory", "Use sleep(level=1).")
    shutdown_weight_transfer_engine = not_built("shutdown_weight_transfer_engine", _WEIGHTS)
    init_weight_transfer_engine = not_built("init_weight_transfer_engine", _WEIGHTS)
    start_weight_update = not_built("start_weight_update", _WEIGHTS)
    update_weights = not_built("update_weights", _WEIGHTS)
    finish_weight_update = not_built("finish_weight_update", _WEIGHTS)
    start_draft_weight_update = not_built("start_draft_weight_update", _WEIGHTS)
    get_weight_version = not_built("get_weight_version", _WEIGHTS)
    update_weight_version = not_built("update_weight_version", _WEIGHTS)
