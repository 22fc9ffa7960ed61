"""One result as one line of the journal, with a checksum over all of it.

    {"crc":"5f0c9a1e","job":"9d2f…","epoch":2,"row":17,"key":"0:17","outputs":["…"], …}\\n

The checksum is the CRC-32 of every byte behind its own field, so a line that was cut, merged with
its neighbour or changed in any single bit is never read as a result. `job` is the id in the
manifest; a job from before there were ids has none, and neither have its records.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.errors import CorruptJob

_HEAD = b'{"crc":"'
_BODY = len(_HEAD) + 8 + 2  # where the checked bytes begin: after 8 digits, a quote, a comma
LONGEST_LINE = 64 << 20
MOST_ROWS = 1 << 48  # also of tokens and epochs
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_quoted = json.encoder.encode_basestring_ascii
_COUNTS = ("row", "epoch", "prompt_tokens", "output_tokens")


class DamagedRecord(CorruptJob):
    """A line of the journal that is not what was written."""


@dataclass(frozen=True, slots=True)
class ResultRecord:
    """The result or the error of one row.

    `row` is its number in the whole work: the number of the input row over all files, times the
    number of sampling settings, plus the setting's. `key` names the row for good (`"file:row"`, or
    the value of the id column); its noise depends on it. `content` is a hash of everything asked.
    `epoch` tells which writer wrote it. A failed row has `error` and `error_type`. `extra` has the
    fields of some jobs only: `timings`, `continuations`, `choice_probs`, `transcript`.
    """

    row: int
    key: str
    content: str
    epoch: int
    outputs: tuple[str, ...] = ()
    finish_reasons: tuple[str, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None
    error_type: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return self.error_type is not None


def fitted(record: ResultRecord, job: str | None = None) -> tuple[ResultRecord, bytes]:
    """The record and its line, with the id `job`. A result that is too long for a line becomes an
    error that says so, since a reader keeps a whole line in memory."""
    line = encode(record, job)
    if len(line) <= LONGEST_LINE:
        return record, line
    error = f"its result takes {len(line)} bytes, and may take {LONGEST_LINE}; ask for less"
    short = ResultRecord(
        record.row,
        record.key,
        record.content,
        record.epoch,
        error=error,
        error_type="result_too_long",
    )
    return short, encode(short, job)


def encode(record: ResultRecord, job: str | None = None) -> bytes:
    """The record as a line of ASCII, so that any text, even broken text, comes back as it was."""
    # Put together by hand: an encoder called once for the whole takes twice as long.
    text = "" if job is None else f'"job":{_quoted(job)},'
    text += (
        f'"epoch":{record.epoch},"row":{record.row},"key":{_quoted(record.key)},'
        f'"content":{_quoted(record.content)},"outputs":{_listed(record.outputs)},'
        f'"finish_reasons":{_listed(record.finish_reasons)},'
        f'"prompt_tokens":{record.prompt_tokens},"output_tokens":{record.output_tokens}'
    )
    if record.error_type is not None:
        error = "null" if record.error is None else _quoted(record.error)
        text += f',"error":{error},"error_type":{_quoted(record.error_type)}'
    if record.extra:
        text += f',"extra":{_ENCODER.encode(record.extra)}'
    body = f"{text}}}".encode("ascii")
    return b'%s%08x",%s\n' % (_HEAD, zlib.crc32(body), body)


def _listed(texts: tuple[str | None, ...]) -> str:
    if not texts:
        return "[]"
    return "[" + ",".join("null" if text is None else _quoted(text) for text in texts) + "]"


def decode(line: bytes) -> ResultRecord:
    """The record on a line (with its newline); raises DamagedRecord for anything else."""
    fields = decode_fields(line)
    return ResultRecord(
        row=fields["row"],
        key=fields["key"],
        content=fields["content"],
        epoch=fields["epoch"],
        outputs=tuple(fields["outputs"]),
        finish_reasons=tuple(fields["finish_reasons"]),
        prompt_tokens=fields["prompt_tokens"],
        output_tokens=fields["output_tokens"],
        error=fields.get("error"),
        error_type=fields.get("error_type"),
        extra=fields.get("extra", {}),
    )


def decode_fields(line: bytes) -> dict[str, Any]:
    """The checked fields of a line, as they were written."""
    if line[-1:] != b"\n" or line[: _BODY - 10] != _HEAD or line[_BODY - 2 : _BODY] != b'",':
        raise DamagedRecord("the line is cut, or is no record")
    body = line[_BODY:-1]
    if line[_BODY - 10 : _BODY - 2] != b"%08x" % zlib.crc32(body):
        raise DamagedRecord("the checksum does not agree with the line")
    # A checksum does not prove who wrote a line: another program's fields are checked, too.
    try:
        fields: dict[str, Any] = json.loads(b"{" + body)
    except (ValueError, RecursionError) as error:
        raise DamagedRecord(f"the line is no JSON: {error}") from None
    if not _is_record(fields):
        raise DamagedRecord("the line lacks a field, or has one of another type")
    return fields


def _is_record(fields: dict[str, Any]) -> bool:
    for name in _COUNTS:
        if type(found := fields.get(name)) is not int or not 0 <= found < MOST_ROWS:
            return False
    outputs, reasons = fields.get("outputs"), fields.get("finish_reasons")
    if not isinstance(outputs, list) or not isinstance(reasons, list):
        return False
    failed = isinstance(fields.get("error_type"), str) and isinstance(fields.get("error"), str)
    answered = "error_type" not in fields and len(outputs) == len(reasons) > 0
    return (
        (failed or answered)
        and isinstance(fields.get("key"), str)
        and isinstance(fields.get("content"), str)
        and isinstance(fields.get("extra", {}), dict)
        and all(isinstance(text, str) for text in outputs)
        and all(isinstance(reason, str | None) for reason in reasons)
    )
