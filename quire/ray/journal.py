"""Answers as files of a journal, each of a batch, under a name that says what was asked."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from quire.base.version import __version__
from quire.ray.config import Row, vLLMEngineProcessorConfig
from quire.session.fingerprint import file_hash
from quire.weights.source import locate

# Columns by which a row asks, beside its id; the others are the pipeline's own.
ASKING = (
    *("messages", "prompt", "prompt_token_ids", "tokenized_prompt", "model"),
    *("sampling_params", "pooling_params", "tokenization_kwargs"),
    *("multimodal_data", "mm_processor_kwargs", "multimodal_uuids"),
)


class Journal:
    """The answers of batches in a folder, whichever actor answers them. Another model, option,
    template or row is another question, and so has another file."""

    def __init__(self, config: vLLMEngineProcessorConfig, rendering: Row) -> None:
        self._folder, self._id = Path(str(config.journal)), str(config.id_column)
        options = config.options
        self._about = [
            *(__version__, config.model_source, _weights(config.model_source, options), options),
            *(config.task_type, config.detokenizes, config.chat is None, rendering),
            config.dynamic_lora_loading_path,
        ]

    def file(self, rows: list[Row]) -> Path:
        """Where the answers of these rows are, or will be."""
        asked = [[str(row[self._id]), *(row.get(name) for name in ASKING)] for row in rows]
        made = hashlib.sha256(json.dumps([self._about, asked], default=_named).encode())
        return self._folder / f"{made.hexdigest()}.json"


def _weights(model: str, options: Row) -> list[str]:
    """What the files hold by whose name the model goes: another may be put in their place."""
    if options.get("load_format") == "dummy":
        return []
    files = locate(
        model,
        revision=options.get("revision"),
        download_dir=options.get("download_dir"),
        token=options.get("hf_token"),
    )
    paths = {tensor.path for tensor in files.stored_tensors().values()}
    return [file_hash(path) for path in sorted(paths)]


def _named(value: Any) -> Any:
    """What JSON has no form for, by its content. A thing that has none to show is named as Python
    does, and hardly twice alike: then the batch is only computed again."""
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
    """Whole or not at all: another actor may write the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(answers, file, default=np.ndarray.tolist)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def read_answers(path: Path) -> list[Row]:
    """The same values: JSON has no arrays of float32, and its keys are all text."""
    found: list[Row] = json.loads(path.read_text(encoding="utf-8"))
    for answer in found:
        if answer["embeddings"] is not None:
            answer["embeddings"] = np.asarray(answer["embeddings"], np.float32)
        for name in ("logprobs", "prompt_logprobs"):
            answer[name] = answer[name] and [
                each and {int(token): one for token, one in each.items()} for each in answer[name]
            ]
    return found
