"""The adapters that a call names, one for all of its prompts or one for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from quire.adapters.sites import sites_of, sites_of_products
from quire.adapters.store import AdapterStore
from quire.config import EngineConfig
from quire.errors import InvalidRequest, NotSupported, QuireError
from quire.options import Options
from quire.params.lora import LoRARequest
from quire.request import Adapter, Request
from quire.spec import AnySpec, EncoderSpec, ModelSpec
from quire.steps.handles import Handles
from quire.weights.source import ModelFiles

if TYPE_CHECKING:
    from torch import Tensor

    from quire.models.fallback.planning import FallbackPlan

NOT_ENABLED = (
    "lora_request: this LLM was made without adapters. Make it with enable_lora=True, and "
    "max_loras and max_lora_rank as they are needed."
)


def make_store(
    config: EngineConfig,
    planned: AnySpec | FallbackPlan,
    options: Options,
    files: ModelFiles,
    handles: Handles,
) -> AdapterStore | None:
    """The store of a model's adapters, or None if there are to be none; `handles` find them."""
    if config.adapters is None or isinstance(planned, EncoderSpec):
        return None
    from quire.adapters.read import read_adapter
    from quire.executor.cpu.local import DTYPES
    from quire.executor.torch_defaults import by_usual_defaults

    if isinstance(planned, ModelSpec):
        sites = sites_of(
            planned,
            experts_add_only=config.device != "cpu",
            divided=config.tensor_parallel_size > 1,
        )
    else:
        sites = sites_of_products(planned.products)
    read = partial(
        read_adapter,
        dtype=DTYPES[config.dtype],
        rows_of=sites.rows_of,
        read_base=partial(
            _base_weights, files, planned, handles, is_dummy=options.load_format == "dummy"
        ),
    )
    store = AdapterStore(
        sites,
        max_rank=config.adapters.max_lora_rank,
        capacity=config.adapters.max_cpu_loras,
        read=by_usual_defaults(read),
        lacks_room=lambda number: handles.lacks_room(number),
        download_dir=options.download_dir,
        token=options.hf_token,
    )
    handles.adapter = store.weights
    return store


def check_no_adapters(options: Options, what: str) -> None:
    """Raise NotSupported if adapters are asked for a model that takes none."""
    if not options.enable_lora:
        return
    raise NotSupported(
        f"enable_lora=True with {what} is not built. Merge the adapter into its base with peft's "
        "merge_and_unload() and load the merged model."
    )


def _base_weights(
    files: ModelFiles,
    planned: ModelSpec | FallbackPlan,
    handles: Handles,
    names: Collection[str],
    *,
    is_dummy: bool,
) -> Iterator[tuple[str, Tensor]]:
    """The model's own weights of these names: those that were exchanged as the model has them, the
    others as its files do. None of files if they are dummies, or if only Transformers knows their
    names in the files."""
    from quire.weights.load import stored_weights

    rest = {*names}
    if handles.exchange is not None:
        for name, weight in handles.exchange.written(names):
            rest.discard(name)
            yield name, weight
    if rest and not is_dummy and isinstance(planned, ModelSpec):
        yield from stored_weights(files, planned, only=rest)


class AskedAdapters:
    """The adapters of a call: a LoRARequest or None for all prompts, or one for each."""

    def __init__(self, given: Any, find: Callable[[LoRARequest], Adapter]) -> None:
        self._given, self._find = given, find
        self._found: dict[int, tuple[Any, Adapter]] = {}  # by identity, within one call

    def check_count(self, num_prompts: int) -> None:
        if isinstance(self._given, LoRARequest) or len(self._given) == num_prompts:
            return
        raise InvalidRequest(
            f"lora_request has {len(self._given)} entries for {num_prompts} prompts; give one for "
            "all, or one for each, None where there is none",
            parameter="lora_request",
            value=len(self._given),
        )

    def at(self, index: int) -> Adapter | None:
        """The adapter of the prompt at this index; InvalidRequest if it cannot be used."""
        given = self._given
        if not isinstance(given, LoRARequest):
            if index >= len(given):
                raise InvalidRequest(
                    f"lora_request has {len(given)} entries, and there are more prompts",
                    parameter="lora_request",
                    value=len(given),
                )
            given = given[index]
        if given is None:
            return None
        if not isinstance(given, LoRARequest):
            raise _no_request(f"lora_request[{index}]", given)
        if id(given) not in self._found:
            self._found[id(given)] = given, self._find(given)
        return self._found[id(given)][1]

    def onto(self, made: Sequence[Request | QuireError], first: int) -> list[Request | QuireError]:
        """The requests from index `first` on, each with its adapter. Where an adapter cannot be
        used, only its own prompts are refused."""
        return [
            item if isinstance(item, QuireError) else self._with_adapter(item, first + i)
            for i, item in enumerate(made)
        ]

    def _with_adapter(self, request: Request, index: int) -> Request | QuireError:
        try:
            return request.adapted_by(self.at(index))
        except InvalidRequest as error:
            return error.at(index)


def asked_adapters(given: Any, store: AdapterStore | None) -> AskedAdapters | None:
    """The adapters that a call names; None if it names none."""
    if given is None:
        return None
    if not isinstance(given, LoRARequest) and (
        isinstance(given, str) or not isinstance(given, Sequence)
    ):
        raise _no_request("lora_request", given)
    if not isinstance(given, LoRARequest) and all(one is None for one in given):
        return None
    if store is None:
        raise NotSupported(NOT_ENABLED)
    return AskedAdapters(given, store.find)


def _no_request(name: str, given: Any) -> InvalidRequest:
    kind = type(given).__name__
    rule = "give a LoRARequest(name, id, path), None, or a list with one for each prompt"
    return InvalidRequest(f"{name} is a {kind}; {rule}", parameter="lora_request")
