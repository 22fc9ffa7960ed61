"""Keeps answers in a folder: a file for each batch, named by a hash of what was asked."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from quire.adapters.config import CONFIG
from quire.adapters.files import TENSORS, adapter_directory
from quire.base.notes import warn
from quire.base.system import sync
from quire.base.version import __version__
from quire.errors import InvalidOption, QuireError
from quire.ray.answers import NOTHING
from quire.ray.config import Row, vLLMEngineProcessorConfig
from quire.session.fingerprint import file_hash
from quire.weights.made_of import made_of

# Columns that are part of what a row asks, with its id; other columns belong to the pipeline.
ASKING = (
    *("messages", "prompt", "prompt_token_ids", "tokenized_prompt", "model"),
    *("sampling_params", "pooling_params", "tokenization_kwargs"),
    *("multimodal_data", "mm_processor_kwargs", "multimodal_uuids"),
)


class AnswerFiles:
    """The answers of batches in a folder, shared by all actors. The file's name is a hash of model,
    tokenizer, adapters, options, template and rows, so a change of one gives another file."""

    def __init__(self, config: vLLMEngineProcessorConfig, rendering: Row) -> None:
        self._folder, self._id = Path(str(config.journal)), str(config.id_column)
        self._config = config
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"journal={config.journal!r} is no folder and cannot be made: {error.strerror}"
            raise InvalidOption(why, parameter="journal") from None
        options = {name: value for name, value in config.options.items() if name != "hf_token"}
        files = made_of(config.model_source, config.options)
        held = [[file_hash(path) for path in each] for each in (files.model, files.tokenizer)]
        self._about = [
            *(__version__, config.model_source, held, options),
            *(config.task_type, config.detokenizes, config.chat is None, rendering),
        ]

    def file(self, rows: list[Row]) -> Path:
        """The file of the answers to these rows, whether it exists or not."""
        asked = [[self._key(row), *(row.get(name) for name in ASKING)] for row in rows]
        paths = sorted({path for row in rows if (path := self._config.adapter_path(row))})
        about = [*self._about, [[path, self._adapter(path)] for path in paths]]
        about.append([[_file(url), url] for url in _urls(asked)])
        made = hashlib.sha256(json.dumps([about, asked], default=_named).encode())
        return self._folder / f"{made.hexdigest()}.json"

    def _key(self, row: Row) -> str:
        if self._id not in row:
            why = f"id_column={self._id!r} is no column of a row that has {', '.join(row)}"
            raise InvalidOption(why, parameter="id_column")
        return str(row[self._id])

    def _adapter(self, path: str) -> list[str]:
        """Hashes of an adapter's files; none if it is missing, an error that its rows will get."""
        options = self._config.options
        try:
            folder = adapter_directory(
                path, download_dir=options.get("download_dir"), token=options.get("hf_token")
            )
            return [file_hash(folder / name) for name in (CONFIG, TENSORS)]
        except (QuireError, OSError):
            return []


def _urls(value: Any) -> Iterator[str]:
    """The URLs of media files in a value."""
    if isinstance(value, str) and value.startswith("file:"):
        yield value
    elif isinstance(value, Mapping):
        yield from _urls(list(value.values()))
    elif isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype == "O"):
        for each in value:
            yield from _urls(each)


def _file(url: str) -> list[int]:
    """Size and time of a file, to see changes without reading it; none if it cannot be read."""
    try:
        found = os.stat(unquote(urlsplit(url).path))
        return [found.st_size, found.st_mtime_ns]
    except (OSError, ValueError):
        return []


def _named(value: Any) -> Any:
    """A JSON form of other values, by their content. An object without content that can be read
    gets its repr, which may change between runs: then the batch is only computed again."""
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject or value.size <= 1:
            return value.tolist()
        return [str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if callable(content := getattr(value, "tobytes", None)):  # an image of Pillow
        return [getattr(value, "mode", ""), getattr(value, "size", ()), _named(content())]
    return repr(value)


def write_answers(path: Path, answers: list[Row]) -> None:
    """Write a whole file or none, as another actor may write the same. If that fails the answers
    are still returned: otherwise Ray would compute the batch again, and fail again."""
    data, aside = (
        json.dumps(answers, default=np.ndarray.tolist),
        path.with_suffix(f".{uuid.uuid4().hex}"),
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(aside, "w", encoding="utf-8") as file:
            file.write(data)
            file.flush()
            sync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        warn(
            f"the answers of {len(answers)} rows are given but not kept: {path.parent}: "
            f"{error.strerror}. Should Ray run their batch again, it is computed again; free some "
            "room, or see who may write there."
        )


def read_answers(path: Path, count: int) -> list[Row] | None:
    """`count` answers from a file, with their types restored: JSON has no float32 arrays, and its
    keys are text. None if there is no such file, or if it is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, list) or len(found) != count:
            raise ValueError(f"it has no answers of {count} rows")
        return [_restored(answer) for answer in found]
    except FileNotFoundError:
        return None
    except OSError as error:
        why = error.strerror
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        why = f"damaged, {type(error).__name__}: {error}"
    warn(f"{path} cannot be read ({why}); its rows are computed again")
    return None


def _restored(answer: Row) -> Row:
    made = {**answer, **{name: answer[name] for name in NOTHING}}
    if answer["embeddings"] is not None:
        made["embeddings"] = np.asarray(answer["embeddings"], np.float32)
    for name in ("logprobs", "prompt_logprobs"):
        made[name] = answer[name] and [
            each and {int(token): one for token, one in each.items()} for each in answer[name]
        ]
    return made
