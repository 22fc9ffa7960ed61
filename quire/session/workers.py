"""Views of executor, worker, model runner and model, as scripts for vLLM reach the model.

quire shows one worker, in this process. Only exchanging weights is supported; the tensors
themselves are packed, and cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from quire.errors import InvalidRequest, NotSupported
from quire.session.lists_attributes import ListsAttributes

if TYPE_CHECKING:
    from torch import Tensor

    from quire.session.session import Session


class RestingView:
    """A view with the LLM's methods to sleep and wake up."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        self._session.sleep(level)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        self._session.wake_up(tags)


class ModelView:
    """The model: its weights can be replaced."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Write (name, tensor) pairs, named as in Hugging Face checkpoints, into the model; returns
        the names that were written."""
        return self._session.load_weights(weights)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"the model has load_weights and no {name!r}: weights lie as kernels read them. Read "
            "those of its files with safetensors, or keep the trainer's."
        )


class ModelRunnerView(ListsAttributes):
    """The object that holds the model."""

    def __init__(self, session: Session) -> None:
        self.model = ModelView(session)

    def get_model(self) -> ModelView:
        return self.model


class WorkerView(RestingView, ListsAttributes):
    """The one worker, which functions of `collective_rpc` are called with."""

    rank = local_rank = 0

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.model_runner = ModelRunnerView(session)

    @property
    def worker(self) -> WorkerView:
        """Itself: some scripts expect a wrapper around the worker."""
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
        """Programs call this before `reload_weights`, which reads the model's files in any case."""
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
        """Call a method of the worker by name, or a function with the worker; returns [result]."""
        self._session.check()
        worker = self.driver_worker
        if not isinstance(method, str):
            if not callable(method):
                raise InvalidRequest(
                    "collective_rpc takes the name of a method of the worker or a function, not a "
                    f"{type(method).__name__}",
                    parameter="method",
                )
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
        """Itself: some scripts expect a client around the engine core."""
        return self

    def shutdown(self, timeout: float | None = None) -> None:
        self._session.close()
