"""The card of a data set on the Hub, made from the manifest: how its rows were made."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from quire.errors import InvalidOption
from quire.evals.scoring.scores import MetricScore, read_scores
from quire.jobs.output.results import StoredRun
from quire.jobs.store.manifest import Manifest
from quire.safe_text import one_line

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def card(
    run: StoredRun, repo: str, *, num_rows: int, split: str, license: str | None = None
) -> str:
    """README.md of the data set; the Hub reads the part between the lines of dashes."""
    manifest = run.manifest
    if manifest is None:
        raise InvalidOption(f"{run.path} is a table; a card is made from a job's manifest")
    parts = [
        _front(num_rows, split, license),
        f"# {_plain(repo.split('/')[-1])}",
        f"{num_rows:,} rows, answered by `{_code(manifest.model)}` with quire "
        f"{_plain(manifest.version)}.",
        "## How it was made",
        _fenced(shlex.join(_portable(manifest))),
        _facts(manifest),
    ]
    if manifest.prompt is not None:
        parts += ["The prompt, a Jinja template over the columns:", _fenced(manifest.prompt)]
    parts += ["## Columns", _columns(manifest)]
    if scores := read_scores(run.home):
        parts += ["## Scores", _scores(scores)]
    return "\n\n".join(parts) + "\n"


def _front(num_rows: int, split: str, license: str | None) -> str:
    from huggingface_hub import DatasetCardData

    data: dict[str, Any] = {
        "license": license,
        "tags": ["synthetic", "quire"],
        "size_categories": [next((name for most, name in _SIZES if num_rows < most), "n>1M")],
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": split, "path": f"data/{split}-*"}],
            }
        ],
    }
    return f"---\n{DatasetCardData(**data).to_yaml()}\n---"


def _portable(manifest: Manifest) -> list[str]:
    """The command without the folders of this machine."""
    return [Path(word).name if Path(word).is_absolute() else word for word in manifest.command]


def _facts(manifest: Manifest) -> str:
    sampling: dict[str, Any] = {k: v for k, v in manifest.sampling.items() if v is not None}
    listed = [
        (
            "model files",
            ", ".join(f"`{_code(f.sha256)}`" for f in manifest.model_files if f.sha256),
        ),
        (
            "input",
            ", ".join(f"`{_code(Path(f.path).name)}` ({f.described})" for f in manifest.inputs),
        ),
        ("sampling", f"`{_code(json.dumps(sampling))}`" if sampling else ""),
        ("seed", str(manifest.seed)),
        ("rows that failed", "" if manifest.num_failed is None else f"{manifest.num_failed:,}"),
        ("made", _plain(manifest.created)),
    ]
    return "\n".join(f"- {name}: {value}" for name, value in listed if value)


def _columns(manifest: Manifest) -> str:
    described = {
        manifest.output_column: "the answer; a list where several were asked for",
        "finish_reason": "why it ended: `stop`, `length`, or `error`",
        "prompt_tokens": "tokens of the prompt",
        "output_tokens": "tokens of the answer",
        "error": "what went wrong with the row, else null",
        "error_type": "the kind of that error, else null",
        "setting": "which of the sampling settings made the row",
    }
    added = manifest.columns or tuple(described)
    lines = [f"- `{_code(name)}`: {described[name]}" for name in added if name in described]
    return "\n".join(["The input's own columns, and:", "", *lines])


def _scores(scores: list[MetricScore]) -> str:
    rows = ["| metric | value | standard error | rows |", "|---|---|---|---|"]
    for score in scores:
        value = "" if score.mean.value is None else f"{score.mean.value:.4f}"
        error = "" if score.mean.stderr is None else f"{score.mean.stderr:.4f}"
        rows.append(f"| {_plain(score.metric)} | {value} | {error} | {score.mean.num:,} |")
    return "\n".join(rows)


def _fenced(text: str) -> str:
    """A code block that no text inside can end."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}\n{text}\n{ticks}"


def _code(text: str) -> str:
    """Text between backticks, on the line it began on."""
    return one_line(text.replace("`", "'"))


def _plain(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>()#+!|" else c for c in one_line(text))
