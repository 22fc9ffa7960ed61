"""A processor: takes a Ray data set of rows, gives a data set of rows with answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quire.base.notes import note
from quire.errors import NotSupported
from quire.ray.config import DATA, ERROR, Packed, Row, vLLMEngineProcessorConfig

RowMap = Callable[[Row], Row]


@dataclass(frozen=True)
class Processor:
    """Call it with a data set; the result is lazy, as Ray's data sets are."""

    config: vLLMEngineProcessorConfig
    preprocess: RowMap | None
    postprocess: RowMap | None
    preprocess_map_kwargs: Mapping[str, Any]
    postprocess_map_kwargs: Mapping[str, Any]
    chat_template_kwargs: Mapping[str, Any] | None

    def __call__(self, dataset: Any) -> Any:
        ray = _ray()
        from quire.ray.engine import EngineUDF

        config = self.config
        low, high = config.pool
        pool = {"min_size": low, "max_size": high}
        if config.max_tasks_in_flight_per_actor is not None:
            pool["max_tasks_in_flight_per_actor"] = config.max_tasks_in_flight_per_actor
        more: dict[str, Any] = {}
        if config.runtime_env is not None:
            more["runtime_env"] = dict(config.runtime_env)
        if config.accelerator_type is not None:
            more["accelerator_type"] = config.accelerator_type
        packed = dataset.map(_packed(self.preprocess), **self.preprocess_map_kwargs)
        answered = packed.map_batches(
            EngineUDF,
            fn_constructor_args=(config, self.chat_template_kwargs),
            batch_size=config.batch_size,
            compute=ray.data.ActorPoolStrategy(**pool),
            max_concurrency=config.max_concurrent_batches,
            num_gpus=_num_gpus(ray, config),
            **more,
        )
        unpacked = _unpacked(self.postprocess, config.should_continue_on_error)
        return answered.map(unpacked, **self.postprocess_map_kwargs)

    def log_input_column_names(self) -> None:
        """Print the columns that rows are read from."""
        note(
            "messages, prompt or prompt_token_ids; sampling_params or pooling_params; and, where "
            "there is any, multimodal_data, mm_processor_kwargs, tokenization_kwargs, model (an "
            "adapter)"
        )


def build_processor(
    config: vLLMEngineProcessorConfig,
    preprocess: RowMap | None = None,
    postprocess: RowMap | None = None,
    preprocess_map_kwargs: Mapping[str, Any] | None = None,
    postprocess_map_kwargs: Mapping[str, Any] | None = None,
    builder_kwargs: Mapping[str, Any] | None = None,
) -> Processor:
    """A processor that answers the rows of a data set.

    `preprocess` makes of each row what is asked: `messages`, `prompt` or `prompt_token_ids`, and
    `sampling_params` or `pooling_params` as a dict; the columns of the data set are kept.
    `postprocess` gets the row with `generated_text`, `embeddings` and so on. A row that failed has
    `__inference_error__`, and is not given to `postprocess`.
    """
    builder = dict(builder_kwargs or {})
    chat_template_kwargs = builder.pop("chat_template_kwargs", None)
    if builder:
        raise NotSupported(f"builder_kwargs has no {sorted(builder)[0]!r}: leave it out")
    return Processor(
        config,
        preprocess,
        postprocess,
        dict(preprocess_map_kwargs or {}),
        dict(postprocess_map_kwargs or {}),
        chat_template_kwargs,
    )


build_llm_processor = build_processor  # the older name


def _packed(preprocess: RowMap | None) -> RowMap:
    def pack(row: Row) -> Row:
        """Keep the columns of the data set, and add what is asked."""
        return {DATA: Packed(row if preprocess is None else {**row, **preprocess(row)})}

    return pack


def _unpacked(postprocess: RowMap | None, goes_on: bool) -> RowMap:
    def unpack(packed: Row) -> Row:
        row: Row = packed[DATA].row
        if postprocess is None or row.get(ERROR):
            return row
        made = postprocess(row)
        return {**made, ERROR: ""} if goes_on else made  # as rows that failed have this column

    return unpack


def _num_gpus(ray: Any, config: vLLMEngineProcessorConfig) -> float:
    """GPUs for each actor: as many as it has ranks, if the cluster has GPUs."""
    if config.engine_kwargs.get("device") == "cpu":
        return 0.0
    has_gpus = ray.cluster_resources().get("GPU", 0) > 0
    return float(config.engine_kwargs.get("tensor_parallel_size", 1)) if has_gpus else 0.0


def _ray() -> Any:
    try:
        import ray.data
    except ImportError:
        raise NotSupported("quire.ray needs Ray: pip install 'quire-llm[ray]'") from None
    return ray
