"""The top of the page: the large figures, and how the run was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.base.durations import duration
from quire.evals.scoring.scores import MetricScore
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.stamps import FileStamp
from quire.report.facts import RunFacts
from quire.report.series import Series


@dataclass(frozen=True, slots=True)
class Tile:
    """One large figure."""

    label: str
    value: str
    unit: str = ""
    more: str = ""
    bad: bool = False


def tiles(
    manifest: Manifest | None, facts: RunFacts, series: Series, scores: Sequence[MetricScore]
) -> list[Tile]:
    whole = manifest.num_rows if manifest else None
    rows = Tile("Rows", f"{facts.num_rows:,}", more=_of_whole(facts.num_rows, whole))
    share = f"{100 * facts.num_failed / facts.num_rows:.1f} % of all" if facts.num_failed else ""
    found = [rows, Tile("Failed", f"{facts.num_failed:,}", more=share, bad=facts.num_failed > 0)]
    if facts.num_prompt_tokens or facts.num_output_tokens:
        read = f"{facts.num_prompt_tokens:,} read" if facts.num_prompt_tokens else ""
        label = "Tokens scored" if _scores(manifest) else "Tokens written"
        found.append(Tile(label, f"{facts.num_output_tokens:,}", more=read))
    if series.working_seconds:
        ended = f"{series.num_output_tokens / series.working_seconds:,.0f}"
        read = f"{series.num_prompt_tokens / series.working_seconds:,.0f}"
        # A scoring run is measured by the tokens it reads, a generating run by those it writes.
        main, more = (read, f"{ended} scored") if _scores(manifest) else (ended, f"{read} read")
        found.append(Tile("Throughput", main, "tok/s", f"{more} per second"))
        starts = len(series.restarts)
        again = f"started again {starts} times" if starts > 1 else "started again once"
        found.append(
            Tile("Working time", duration(series.working_seconds), more=again if starts else "")
        )
    if scores:
        first = scores[0]
        value = "" if first.mean.value is None else f"{first.mean.value:.3f}"
        error = "" if first.mean.stderr is None else f"± {first.mean.stderr:.3f}"
        found.append(Tile(first.metric, value, error, f"{first.mean.num:,} rows scored"))
    return found


def _scores(manifest: Manifest | None) -> bool:
    """Whether the run scored given texts instead of writing its own."""
    return manifest is not None and manifest.kind == "choices"


def written(manifest: Manifest | None) -> str:
    """The word for the tokens at the end of a row: generated or scored ones."""
    return "Tokens of all choices" if _scores(manifest) else "Answer tokens"


def _of_whole(num: int, whole: int | None) -> str:
    return f"of {whole:,} so far" if whole is not None and whole != num else ""


def described(manifest: Manifest) -> list[tuple[str, str]]:
    """The facts needed to make the run again."""
    found = [
        ("Made", manifest.created),
        ("With", f"quire {manifest.version}"),
        ("Model", _with_files(manifest.model, manifest.model_files)),
        ("Input", "; ".join(_file(stamp) for stamp in manifest.inputs)),
        ("Sampling", "" if _scores(manifest) else _pairs(manifest.sampling)),
        ("Settings", "; ".join(_pairs(setting) for setting in manifest.settings)),
        ("Seed", str(manifest.seed)),
        ("Engine options", _pairs(manifest.options)),
        ("Only rows where", manifest.where or ""),
        ("Limit", "" if manifest.limit is None else f"{manifest.limit:,} rows"),
        ("Shard", f"{manifest.shard[0]} of {manifest.shard[1]}" if manifest.shard else ""),
        ("System message", manifest.system or ""),
        ("Output", manifest.output),
    ]
    return [(name, value) for name, value in found if value]


def _with_files(model: str, files: Sequence[FileStamp]) -> str:
    hashes = [file.sha256[:12] for file in files if file.sha256]
    return f"{model} (sha256 {', '.join(hashes)})" if hashes else model


def _file(stamp: FileStamp) -> str:
    return f"{stamp.path} ({stamp.described})"


def _pairs(values: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in dict(values).items() if value is not None)
