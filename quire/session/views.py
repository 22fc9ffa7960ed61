"""What scripts read off an LLM besides its results, under the names they use; and the methods
they may call that are not built, each with its way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from quire.errors import NotSupported


@dataclass(frozen=True, slots=True)
class ModelConfigView:
    """`llm.llm_engine.model_config`."""

    model: str
    tokenizer: str
    max_model_len: int
    dtype: str
    seed: int
    hf_config: dict[str, Any]

    def get_vocab_size(self) -> int:
        return int(self.hf_config["vocab_size"])


@dataclass(frozen=True, slots=True)
class SpeculationView:
    """Tokens that were guessed ahead since the LLM was made, and how many of them were right."""

    num_guessed: int
    num_accepted: int


@dataclass(frozen=True, slots=True)
class EngineView:
    """`llm.llm_engine`, as far as scripts look into it."""

    model_config: ModelConfigView
    num_unfinished: Callable[[], int]
    speculation: SpeculationView

    def get_num_unfinished_requests(self) -> int:
        return self.num_unfinished()

    def has_unfinished_requests(self) -> bool:
        return self.num_unfinished() > 0

    def get_model_config(self) -> ModelConfigView:
        return self.model_config

    @property
    def model_executor(self) -> NoReturn:
        raise NotSupported("llm_engine.model_executor is not built; quire runs in one process.")


@dataclass(frozen=True, slots=True)
class KvCacheView:
    """The KV cache of an LLM: how large it is, and how much of it was ever in use at once."""

    num_blocks: int
    block_size: int
    peak_blocks: int


def _not_built(name: str, way_out: str) -> Callable[..., NoReturn]:
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotSupported(f"LLM.{name} is not built. {way_out}")

    method.__name__ = name
    method.__doc__ = f"Not built. {way_out}"
    return method


_POOLING = "quire generates text; use a sentence-embedding library for vectors and scores."
_WEIGHTS = "Make a new LLM for new weights: it starts in seconds."
_PROCESSES = "quire runs in this process; call your function directly."
_PROFILE = "Use torch.profiler around generate()."


class NotBuiltMethods:
    """Methods of vLLM's LLM that raise NotSupported."""

    encode = _not_built("encode", _POOLING)
    embed = _not_built("embed", _POOLING)
    classify = _not_built("classify", _POOLING)
    reward = _not_built("reward", _POOLING)
    score = _not_built("score", _POOLING)
    collective_rpc = _not_built("collective_rpc", _PROCESSES)
    apply_model = _not_built("apply_model", _PROCESSES)
    sleep = _not_built("sleep", "Use close() to free the memory, and make a new LLM later.")
    wake_up = _not_built("wake_up", "There is no sleep() to wake from.")
    reset_mm_cache = _not_built("reset_mm_cache", "There are no media inputs yet.")
    get_metrics = _not_built("get_metrics", "Each RequestOutput has its own .metrics.")
    start_profile = _not_built("start_profile", _PROFILE)
    stop_profile = _not_built("stop_profile", _PROFILE)
    init_weight_transfer_engine = _not_built("init_weight_transfer_engine", _WEIGHTS)
    start_weight_update = _not_built("start_weight_update", _WEIGHTS)
    update_weights = _not_built("update_weights", _WEIGHTS)
    finish_weight_update = _not_built("finish_weight_update", _WEIGHTS)
