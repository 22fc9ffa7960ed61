"""The manifest of a job: everything its results depend on, on disk before the first of them.

A job continues only if the manifest of the present command is the same; `differences` lists what is
not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from quire.base.version import __version__
from quire.errors import CorruptJob, InvalidOption
from quire.jobs.run_options import kept_names
from quire.jobs.store import secrets
from quire.jobs.store.bounded import read_bounded
from quire.jobs.store.durable import write_file
from quire.jobs.store.stamps import FileStamp

NAME = "manifest.json"
MOST_BYTES = 16 << 20  # enough for some 60,000 input files; a longer manifest is refused
Status = Literal["running", "stopped", "finished"]
Kind = Literal["generate", "choices", "batch", "embed", "transcribe"]

# Fields that are not part of a row's content hash: if one of them changed, every row changed.
_ABOUT_EVERY_ROW = ("kind", "model", "tokenizer", "options", "model_files", "tokenizer_files")
_ABOUT_ROWS = ("version", "inputs", "sampling", "settings", "output_format", *kept_names())
_LONGEST_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a job is. `inputs` and the model's files are known by size and hash, not by path."""

    version: str
    id: str | None = None  # in every record; None in a job from before there were ids
    created: str  # UTC, ISO 8601
    command: tuple[str, ...]  # what continues the job when it is run again
    kind: Kind
    inputs: tuple[FileStamp, ...]
    input_format: str | None = None
    prompt: str | None = None  # a Jinja template over the input's columns
    messages: str | None = None  # the column with conversations
    system: str | None = None
    image: tuple[str, ...] | None = None  # the columns with images
    audio: tuple[str, ...] | None = None  # those with sounds
    video: tuple[str, ...] | None = None  # those with videos
    few_shot: tuple[tuple[str, str], ...] = ()  # (question, answer), rendered
    continuations: str | tuple[str, ...] | None = None  # a column, or templates
    schema_column: str | None = None
    chat: bool | None = None  # None: whether the model has a chat template
    lora: Mapping[str, str] = field(default_factory=dict)  # adapters: what their files hold
    lora_column: str | None = None
    id_column: str | None = None
    where: str | None = None
    limit: int | None = None
    shard: tuple[int, int] | None = None  # (i, n), i from 1
    join: bool = False  # by workers that claim chunks of it
    sampling: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[Mapping[str, Any], ...] = ()  # further parameters, each with a "name"
    seed: int = 0
    model: str = ""
    tokenizer: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of the engine
    model_files: tuple[FileStamp, ...] = ()  # known when an engine has started
    tokenizer_files: tuple[FileStamp, ...] = ()
    # Options that the first engine chose; later engines use the same, so that answers do not mix.
    arithmetic: Mapping[str, Any] = field(default_factory=dict)
    output: str = ""
    output_format: str = "jsonl"
    output_column: str = "output"
    timings: bool = False
    choice_probs: bool = False
    columns: tuple[str, ...] = ()  # columns that the output adds to those of the input
    num_rows: int | None = None  # of the output, once all of the input was read
    num_failed: int | None = None  # once finished
    output_file: FileStamp | None = None  # likewise, with its hash
    status: Status = "running"
    first_epoch: int = 1  # older records are from before the job was changed
    reuse_from: int | None = None  # older records from this epoch on may be used again

    def __post_init__(self) -> None:
        # Here, so that no manifest has secrets, however it was made, also one from an older file.
        object.__setattr__(self, "options", secrets.without(self.options))
        object.__setattr__(self, "command", secrets.described(self.command))

    @classmethod
    def load(cls, job_dir: Path) -> Manifest:
        """The manifest in `job_dir`; FileNotFoundError where there is none."""
        path = job_dir / NAME
        try:
            found = json.loads(read_bounded(path, MOST_BYTES))
            _refuse_newer(path, found)
            return _from_json(found)
        except (ValueError, RecursionError) as error:
            raise CorruptJob(
                f"{path} does not read as a manifest ({error}). Its results are in the files "
                "beside it; give another OUTPUT, or --overwrite to begin again."
            ) from None

    def save(self, job_dir: Path) -> None:
        data = json.dumps(asdict(self), indent=1, ensure_ascii=True).encode() + b"\n"
        if len(data) > MOST_BYTES:
            raise InvalidOption(
                f"what this job is takes {len(data):,} bytes to say ({len(self.inputs):,} input "
                f"files, {len(self.few_shot):,} examples); the most is {MOST_BYTES:,}. Join the "
                "input into fewer files, or make several jobs of it."
            )
        write_file(job_dir / NAME, data)

    def changed(self, **values: Any) -> Manifest:
        return replace(self, **values)

    def finished(self, rows: int, failed: int) -> Manifest:
        """The manifest of the finished job, once its output is there."""
        file = FileStamp.of(Path(self.output)).hashed()
        return replace(self, status="finished", num_rows=rows, num_failed=failed, output_file=file)

    def differences(self, now: Manifest) -> tuple[list[str], bool]:
        """The differences of `now`, one line each, and whether they change every single row."""
        about_every_row = list(_differing(self, now, _ABOUT_EVERY_ROW))
        return [*_differing(self, now, _ABOUT_ROWS), *about_every_row], bool(about_every_row)


def _refuse_newer(path: Path, found: Any) -> None:
    """Refuse a manifest with unknown fields: they may change every row, so none may be ignored."""
    known = {"output_bytes", *(f.name for f in fields(Manifest))}
    is_one = isinstance(found, dict) and isinstance(found.get("version"), str)
    if is_one and (strange := sorted(found.keys() - known)):
        raise CorruptJob(
            f"{path} has what this quire ({__version__}) does not know: "
            f"{_shown(', '.join(strange))}. A newer one wrote it (version "
            f"{_shown(found.get('version'))}): go on with that one, give another OUTPUT, or "
            "--overwrite to begin again."
        )


def _from_json(found: Any) -> Manifest:
    """Raises ValueError with the field's name if one is missing or has a value of another type."""
    import msgspec  # imported here, since few commands read a manifest

    if isinstance(found, dict):
        found.pop("output_bytes", None)  # a field of an older version
    made = msgspec.convert(found, Manifest)
    if not all("name" in setting for setting in made.settings):
        raise ValueError("a setting without a name")
    return made


def _differing(then: Manifest, now: Manifest, names: Iterable[str]) -> Iterable[str]:
    for name in names:
        old, new = getattr(then, name), getattr(now, name)
        if name in ("inputs", "model_files", "tokenizer_files"):
            yield from _differing_files(name, old, new)
        elif isinstance(old, Mapping):
            for key in sorted({*old, *new}):
                if old.get(key) != new.get(key):
                    yield f"{name}.{key}: {_shown(old.get(key))} -> {_shown(new.get(key))}"
        elif old != new:
            yield f"{name}: {_shown(old)} -> {_shown(new)}"


def _differing_files(
    name: str, old: tuple[FileStamp, ...], new: tuple[FileStamp, ...]
) -> Iterable[str]:
    """Files that are not known yet (no stamps) are no difference."""
    if not old or not new:
        return
    if len(old) != len(new):
        yield f"{name}: {len(old)} files -> {len(new)} files"
        return
    for before, after in zip(old, new, strict=True):
        if not before.same_as(after):
            change = f"{before.described} -> {after.described}"
            yield f"{name}: {after.path} is not what it was ({change})"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
