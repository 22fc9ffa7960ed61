"""Finished jobs for tests that read them: the real manifest and journal, without an engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire.jobs.store.manifest import Manifest
from quire.jobs.store.record import ResultRecord, encode
from quire.jobs.store.segments import segment_name
from quire.jobs.store.stamps import FileStamp


def stored_job(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    outputs: Sequence[Any],
    *,
    name: str = "out.jsonl",
    metrics: Sequence[dict[str, Any]] = (),
    **manifest: Any,
) -> Path:
    """A job over `rows`; an output is a text, texts, an Exception, or a whole ResultRecord."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{name}.input.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    output = folder / name
    home = output.with_name(output.name + ".quire")
    home.mkdir()
    records = [_record(number, given) for number, given in enumerate(outputs)]
    for segment, failed in ((1, False), (0, True)):
        lines = [encode(record) for record in records if record.failed == failed]
        (home / segment_name(segment)).write_bytes(b"".join(lines))
    (home / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    described: dict[str, Any] = {
        "version": "0.1.0",
        "created": "2026-11-15T08:00:00+00:00",
        "command": ("quire", "run", source.name, "--model", "smollm2", "-o", name),
        "kind": "generate",
        "inputs": (FileStamp.of(source),),
        "prompt": "{{ question }}",
        "model": "smollm2",
        "output": str(output),
        "status": "finished",
        "num_rows": len(rows),
        "sampling": {"temperature": 0.0, "max_tokens": 64},
        **manifest,
    }
    Manifest(**described).save(home)
    return output


def _record(number: int, given: Any) -> ResultRecord:
    if isinstance(given, ResultRecord):
        return given
    if isinstance(given, Exception):
        return ResultRecord(
            number, f"0:{number}", "c", 1, error=str(given), error_type=type(given).__name__
        )
    texts = (given,) if isinstance(given, str) else tuple(given)
    return ResultRecord(
        row=number,
        key=f"0:{number}",
        content="c",
        epoch=1,
        outputs=texts,
        finish_reasons=("stop",) * len(texts),
        prompt_tokens=10 + number,
        output_tokens=sum(len(text.split()) for text in texts),
    )
