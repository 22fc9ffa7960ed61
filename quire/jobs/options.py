"""The options of a job (run_options.py), checked when made; nothing is read or started yet."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.errors import InvalidOption, InvalidRequest
from quire.grammar.check import check_readable
from quire.inputs.transcript_params import transcript_params
from quire.jobs.child.requests import sampling_params
from quire.jobs.input.templates import RowTemplate, RowTest
from quire.jobs.input.work import Selection, Setting
from quire.jobs.output.output import output_format
from quire.jobs.run_options import RunOptions
from quire.jobs.store.manifest import Kind
from quire.jobs.transcripts import transcript_format
from quire.jobs.vectors import pooling_params
from quire.options import parse_options
from quire.replicas.places import Place, places
from quire.safe_text import without_secrets

# The sampling parameters of a job by default: greedy, with more tokens than the usual 16.
DEFAULTS: dict[str, Any] = {"temperature": 0.0, "max_tokens": 256}
STDIN = "-"
# Options about prompts and answers, which jobs for vectors or transcripts do not have.
_OF_TEXT = (
    *("batch", "messages", "system", "few_shot", "continuations", "chat", "settings"),
    *("schema", "schema_column", "regex", "choice", "grammar"),
)
_NOT_STORED = frozenset(
    ("logprobs", "prompt_logprobs", "logprob_token_ids", "prompt_logprob_token_ids")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions(RunOptions):
    """RunOptions whose values were checked."""

    def __post_init__(self) -> None:
        if not self.batch and not self.transcribe:
            _one_of("prompt", self.prompt, "messages", self.messages)
        _one_of("input", self.input or None, "rows", self.rows)
        if self.schema_column is not None and (self._structured() or self.continuations):
            raise _wrong("schema_column", "excludes the others that shape answers", None)
        if self.choice_probs and self.choice is None:
            raise _wrong("choice_probs", "goes with choice, whose probabilities are stored", None)
        self._check_adapters()
        if self.embed or self.transcribe:
            self._check_no_text()
        if self.continuations is not None and self.prompt is None:
            raise _wrong("continuations", "goes with a prompt that they continue", None)
        if self.messages is not None and self.few_shot is not None:
            raise _wrong("few_shot", "goes with a prompt; conversations hold their own", None)
        for name in ("output", "job", "few_shot"):
            if getattr(self, name) == "":
                raise _wrong(name, "is the name of a file or folder", "")
        if self.prompt == "" and not (self.system or self.few_shot or self.media_columns()):
            rule = 'is empty, and so is every question; name a column: "{{ text }}"'
            raise _wrong("prompt", rule, None)
        if self.prompt is not None:
            RowTemplate(self.prompt, "--prompt")
        if self.where is not None:
            RowTest(self.where, "--where")
        if not self.model or "://" in self.model:
            rule = "is a path, a Hub id or an alias such as smollm2"
            raise _wrong("model", rule, without_secrets(self.model))
        if "://" in self.output:
            rule = "is a file on this machine; `quire export` puts results elsewhere"
            raise _wrong("output", rule, without_secrets(self.output))
        if not self.output_column:
            raise _wrong("output_column", "is the name of a column", self.output_column)
        _whole("limit", self.limit, low=1)
        _whole("replicas", self.replicas, low=1)
        if self.gpus is not None and not isinstance(self.gpus, str):
            raise _wrong("gpus", "is all, or numbers such as 0,2", self.gpus)
        _whole("seed", self.seed, low=-(2**63))
        _check_shard(self.shard)
        (transcript_format if self.transcribe else output_format)(Path(self.output))
        parse_options(self.options)
        check = {"embed": pooling_params, "transcribe": transcript_params}.get(
            self.kind, sampling_params
        )
        for setting in self.sampling_settings():
            if wanted := getattr(check(setting.params), "structured_outputs", None):
                check_readable(wanted)
            for name in _NOT_STORED & setting.params.keys():
                if (value := setting.params[name]) is not None and value is not False:
                    rule = "is not stored by a job: ask LLM.generate, or score with continuations"
                    raise _wrong(name, rule, value)

    def _check_adapters(self) -> None:
        if self.lora_column is not None and not self.lora:
            raise _wrong("lora_column", "goes with lora, which says where adapters are", None)
        if len(self.lora) > 1 and self.lora_column is None:
            raise _wrong("lora", "of several needs lora_column, which chooses", [*self.lora])
        if self.lora and self.kind != "generate":
            raise _wrong("lora", f"is for jobs that generate text, and this is {self.kind}", None)

    def _check_no_text(self) -> None:
        for name in _OF_TEXT:
            if getattr(self, name):
                raise _wrong(name, f"is for jobs that generate text, and this is {self.kind}", None)

    @property
    def kind(self) -> Kind:
        if self.batch or self.embed:
            return "batch" if self.batch else "embed"
        if self.transcribe:
            return "transcribe"
        return "generate" if self.continuations is None else "choices"

    def sampling_settings(self) -> tuple[Setting, ...]:
        """Each sampling setting with all parameters: the defaults, the common ones, its own."""
        if self.embed:
            return (Setting(None, dict(self.sampling)),)
        if self.transcribe:
            return (Setting(None, transcript_params(self.sampling)),)
        # The lines of a batch file have their own parameters, by default with temperature 1.
        defaults = {"temperature": 1.0} if self.batch else DEFAULTS
        common = {**defaults, **self.sampling, **self._structured()}
        if not self.settings:
            return (Setting(None, common),)
        made = []
        for i, given in enumerate(self.settings):
            own = dict(given)
            name = str(own.pop("name", i))
            made.append(Setting(name, {**common, **own}))
        names = [setting.name for setting in made]
        if len(set(names)) < len(names):
            raise _wrong("settings", "have names of their own", names)
        return tuple(made)

    def _structured(self) -> dict[str, Any]:
        given = {
            "json": None if self.schema is None else read_schema(self.schema),
            "regex": self.regex,
            "choice": None if self.choice is None else list(self.choice),
            "grammar": None if self.grammar is None else read_text_or_file(self.grammar),
        }
        wanted = {name: value for name, value in given.items() if value is not None}
        if len(wanted) > 1:
            raise _wrong("schema", "excludes regex, choice and grammar", sorted(wanted))
        if self.choice_probs:
            wanted["choice_mode"] = "whole"  # drawn token by token, choices have no probabilities
        return {"structured_outputs": wanted} if wanted else {}

    def places(self) -> tuple[Place, ...]:
        """Where each replica runs; InvalidOption if the machine has no room for so many."""
        return places(self.replicas, self.gpus, self.options)

    def selection(self) -> Selection:
        return Selection(self.where, self.limit, self.shard, self.id)


def read_text_or_file(given: str) -> str:
    """The text of a file of that name, if there is one; else the text itself."""
    path = Path(given)
    try:
        is_file = path.is_file()
    except ValueError:  # with a NUL in it: no name
        return given
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return given
    try:
        return path.read_text(encoding="utf-8") if is_file else given
    except UnicodeDecodeError as error:
        said = f"{given} is no text in UTF-8: {error.reason} at byte {error.start}"
        raise InvalidOption(said) from None


def read_schema(given: str) -> Any:
    text = read_text_or_file(given)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        which = "no file has that name" if text is given else "neither is what that file holds"
        rule = f"is a JSON schema or its file; it is no JSON ({error}), and {which}"
        raise _wrong("schema", rule, given) from None


def parse_shard(given: str) -> tuple[int, int]:
    """ "2/8" is the second of eight parts."""
    index, slash, count = given.partition("/")
    if not slash or not index.isdecimal() or not count.isdecimal():
        raise _wrong("shard", 'is of the form i/n, such as "1/4"', given)
    return int(index), int(count)


def _check_shard(shard: tuple[int, int] | None) -> None:
    if shard is not None and not 1 <= shard[0] <= shard[1]:
        raise _wrong("shard", "is i/n with i from 1 to n", f"{shard[0]}/{shard[1]}")


def _whole(name: str, value: int | None, *, low: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise _wrong(name, f"is a whole number of at least {low}", value)


def _one_of(first: str, one: object, second: str, other: object) -> None:
    if (one is None) == (other is None):
        what = "both are given" if one is not None else "neither is given"
        raise _wrong(first, f"or {second} is needed, and not both: {what}", None)


def _wrong(name: str, rule: str, value: object) -> InvalidRequest:
    shown = "" if value is None else f"; here: {value!r}"
    return InvalidOption(f"{name} {rule}{shown}", parameter=name, value=value)


def as_tuple(value: Any) -> tuple[Any, ...]:
    """One, or a sequence of them."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return (value,)
    return tuple(value)
