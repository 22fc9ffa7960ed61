"""The files of a model and its tokenizer, since a job's results depend on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quire.jobs.store.stamps import FileStamp
from quire.replicas.wire import Message
from quire.weights.made_of import made_of


def files_of(model: str, options: Mapping[str, Any]) -> Message:
    """The stamps of the files of both; fetches missing files, as loading the model would."""
    found = made_of(model, options)
    return {"model_files": _stamps(found.model), "tokenizer_files": _stamps(found.tokenizer)}


def _stamps(paths: Iterable[Path]) -> list[Message]:
    return [asdict(FileStamp.of(path)) for path in paths]
