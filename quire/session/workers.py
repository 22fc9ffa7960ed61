"""The way down to a model as scripts for vLLM walk it: executor, worker, model runner, model.

quire runs in one process, so there is one worker and it is here. What can be done along the way
is to exchange weights; the tensors themselves are packed and do not show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from quire.errors import NotSupported
from quire.session.lists_attributes import ListsAttributes

if TYPE_CHECKING:
    from torch import Tensor

    from quire.session.session import Session


class RestingView:
    """A view from which the engine can be put to rest, as from the LLM itself."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        self._session.sleep(level)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        self._session.wake_up(tags)


class ModelView:
    """The model, as far as its weights can be exchanged."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Write (name, tensor) pairs, with the names of Hugging Face checkpoints, into the
        model; returns the names that were."""
        return self._session.load_weights(weights)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"the model has load_weights and no {name!r}: weights lie as kernels read them. Read "
            "those of its files with safetensors, or keep the trainer's."
        )


class ModelRunnerView(ListsAttributes):
    """What holds the model."""

    def __init__(self, session: Session) -> None:
        self.model = ModelView(session)

    def get_model(self) -> ModelView:
        return self.model


class WorkerView(RestingView, ListsAttributes):
    """The one worker: what functions of `collective_rpc` are called with."""

    rank = local_rank = 0

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.model_runner = ModelRunnerView(session)

    @property
    def worker(self) -> WorkerView:
        """Itself: some walk through a wrapper that is not needed here."""
        return self

    @property
    def device(self) -> Any:
        import torch

        return torch.device(self._session.model.facts.device)

    def get_model(self) -> ModelView:
        return self.model_runner.model

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        return self._session.load_weights(weights)

    def reload_weights(
        self,
        weights_iterator: Iterable[tuple[str, Tensor]] | None = None,
        weights_path: str | None = None,
        is_checkpoint_format: bool = True,
    ) -> None:
        """Read the weights again: from the iterator, from another path, or from the model's own
        files."""
        if not is_checkpoint_format:
            raise NotSupported(
                "reload_weights(is_checkpoint_format=False) is not built: give tensors with the "
                "names and shapes that the checkpoint has."
            )
        if weights_iterator is not None:
            self._session.load_weights(weights_iterator)
        else:
            self._session.load_weights(self._session.model.stored(weights_path))

    def update_config(self, overrides: Mapping[str, Any]) -> None:
        """What programs say before `reload_weights`, which reads the model's files in any case."""
        if overrides != {"load_config": {"load_format": "auto"}}:
            raise NotSupported(
                f"update_config({overrides!r}) is not built: what was decided stays. Make another "
                'LLM; before reload_weights, {"load_config": {"load_format": "auto"}} is taken.'
            )

    def check_health(self) -> None:
        self._session.check()


class ExecutorView(RestingView, ListsAttributes):
    """`llm.llm_engine.model_executor`."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.driver_worker = WorkerView(session)

    @property
    def is_sleeping(self) -> bool:
        return self._session.is_sleeping

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """[what came of it]: a method of the worker by name, or a function that takes it."""
        self._session.check()
        worker = self.driver_worker
        if not isinstance(method, str):
            return [method(worker, *args, **(kwargs or {}))]
        if method.startswith("_") or not callable(found := getattr(worker, method, None)):
            known = [
                n for n in dir(worker) if not n.startswith("_") and callable(getattr(worker, n))
            ]
            raise NotSupported(
                f"collective_rpc({method!r}) is not built. The worker has {', '.join(known)}; pass "
                "a function that takes the worker for anything else."
            )
        return [found(*args, **(kwargs or {}))]

    def shutdown(self) -> None:
        self._session.close()


class EngineCoreView(ListsAttributes):
    """`llm.llm_engine.engine_core`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.model_executor = ExecutorView(session)

    @property
    def engine_core(self) -> EngineCoreView:
        """Itself: a client and what it asks are one here."""
        return self

    def shutdown(self, timeout: float | None = None) -> None:
        self._session.close()
