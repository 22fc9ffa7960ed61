"""Names that scripts import and that are not built: each says so, and the way out, when used."""

from __future__ import annotations

from typing import Any, NoReturn

from quire.errors import NotSupported


class _NotBuilt:
    """Importing and naming it is fine; making one, or asking it for anything, is not."""

    way_out = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._refuse()

    @classmethod
    def _refuse(cls) -> NoReturn:
        raise NotSupported(f"{cls.__name__} is not built. {cls.way_out}")

    @classmethod
    def from_engine_args(cls, *args: Any, **kwargs: Any) -> NoReturn:
        cls._refuse()


class NCCLWeightTransferEngine(_NotBuilt):
    """Weights sent to a server's ranks by NCCL."""

    way_out = "Train beside the LLM (colocate): load_weights takes named tensors (docs/clients.md)."


class NCCLTrainerSendWeightsArgs(NCCLWeightTransferEngine):
    """What that engine sends."""


def initialize_ray_cluster(*args: Any, **kwargs: Any) -> NoReturn:
    """Many machines behind one LLM."""
    raise NotSupported("Ray clusters are not built. Run one LLM per machine on its own prompts.")
