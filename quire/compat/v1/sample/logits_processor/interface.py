"""The interface of logits processors, under the name scripts know."""

from quire.sampling.batch_interface import (
    AddedRequest,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    MovedRequest,
    RemovedRequest,
)

__all__ = [
    "AddedRequest",
    "BatchUpdate",
    "LogitsProcessor",
    "MoveDirectionality",
    "MovedRequest",
    "RemovedRequest",
]
