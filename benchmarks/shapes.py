"""Which model a benchmark runs: a path, an alias, or a shape of models/ with random weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MODELS = Path(__file__).parent / "models"


@dataclass(frozen=True)
class Model:
    """What to hand to `LLM`: a path or name, and the options it needs."""

    name: str
    path: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def dummy(self) -> bool:
        return self.options.get("load_format") == "dummy"


@contextmanager
def opened(name: str, **options: Any) -> Iterator[Model]:
    """The model of this name; that of a shape lives in a directory that is removed again."""
    shape = MODELS / f"{name}.json"
    if not shape.exists():
        yield Model(name, name, dict(options))
        return
    with TemporaryDirectory(prefix="quire-shape-") as directory:
        config = json.loads(shape.read_text())
        (Path(directory) / "config.json").write_text(json.dumps(config))
        # A shape has neither weights nor a tokenizer.
        needed = {"load_format": "dummy", "skip_tokenizer_init": True}
        yield Model(name, directory, {**needed, **options})
