"""Turns a job's options into the rows to ask and the first message to an engine: for a run, for a
worker of a joined job, and for a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.jobs.adapters import engine_options
from quire.jobs.input.files import InputFile
from quire.jobs.input.media import MediaCells, media_folder
from quire.jobs.input.prompts import PromptMaker
from quire.jobs.input.sounds import SoundAsking
from quire.jobs.input.work import Asking, Done, Work
from quire.jobs.options import JobOptions
from quire.jobs.store import secrets
from quire.jobs.store.manifest import Manifest
from quire.replicas.wire import Message


def opening_message(manifest: Manifest, options: JobOptions) -> Message:
    """The first message to an engine: everything that is the same for all rows. It may hold
    secrets, since it is sent over a pipe and not stored."""
    return {
        "kind": "open",
        "job": manifest.kind,
        "model": manifest.model,
        "options": {
            **engine_options(options.lora, options.options),
            **manifest.arithmetic,
            **manifest.options,
            **secrets.of(options.options),
        },
        "lora": dict(options.lora),
        "chat": manifest.chat,
        "system": manifest.system,
        "few_shot": manifest.few_shot,
        "settings": [_params(s) for s in manifest.settings] or [dict(manifest.sampling)],
        "choice_probs": manifest.choice_probs,
    }


def _params(setting: Any) -> dict[str, Any]:
    return {name: value for name, value in setting.items() if name != "name"}


def _media(options: JobOptions, files: Sequence[InputFile]) -> MediaCells | None:
    columns = options.media_columns()
    return MediaCells(columns, media_folder(files)) if columns else None


def make_work(options: JobOptions, manifest: Manifest, files: list[InputFile], done: Done) -> Work:
    asking: Asking
    if options.transcribe:
        asking = SoundAsking()
    elif options.kind == "batch":
        from quire.jobs.batch import BatchAsking

        asking = BatchAsking()
    else:
        asking = PromptMaker(
            prompt=options.prompt,
            messages=options.messages,
            continuations=options.continuations,
            schema_column=options.schema_column,
            media=_media(options, files),
            lora=manifest.lora,
            lora_column=manifest.lora_column,
        )
    return Work(
        files,
        asking,
        options.sampling_settings(),
        options.selection(),
        seed=options.seed,
        common=[manifest.kind, manifest.system, manifest.few_shot, manifest.chat],
        reserved=frozenset(manifest.columns),
        done=done,
    )
