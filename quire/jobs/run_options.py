"""Every option of a job, once: name, type, default, help, and whether a manifest keeps it.

`quire.Job` takes them by name, `quire run` as flags (cli/job_options.py), and a TOML file by their
flags' names. The manifest compares those that results depend on (store/manifest.py). To add an
option, add a field here, its check in options.py, and the code that uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from quire.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class Flag:
    """How an option is written on the command line."""

    help: str
    names: tuple[str, ...] = ()  # by default --the-name of the option
    type: Any = str
    is_argument: bool = False
    # True, or its name in the manifest, if the rows of a job depend on this option.
    kept: bool | str = False


def option(
    help: str, *names: str, default: Any = None, type: Any = str, kept: bool | str = False
) -> Any:
    """A field of RunOptions that is also a flag."""
    return field(default=default, metadata={"flag": Flag(help, names, type, kept=kept)})


def switch(help: str, name: str, *, kept: bool = False) -> Any:
    """An option that is off unless its flag is given."""
    return option(help, name, default=False, type=bool, kept=kept)


_INPUT = "Files (JSON, CSV, Parquet, Arrow), folders, hf:owner/name:split, or - for stdin."
_LORA = "A LoRA adapter that rows use: NAME=PATH; may be repeated."
_CHAT = "Use the model's chat template or not; if it has one, yes."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """All options of a job. `rows` is input that a program passes instead of files.

    `schema` and `grammar` are text or the path of a file; `choice` is a list of answers.
    """

    input: tuple[str, ...] = field(
        default=(), metadata={"flag": Flag(_INPUT, type=list[str], is_argument=True)}
    )
    rows: Iterable[Mapping[str, Any]] | None = None
    output: str = field(metadata={"flag": Flag("A .jsonl or .parquet file.", ("--output", "-o"))})
    model: str = field(
        metadata={"flag": Flag("An alias (smollm2), a path or Hub id.", ("--model", "-m"))}
    )
    prompt: str | None = option(
        'Jinja over columns: "Sum up: {{ text }}".', "--prompt", "-p", kept=True
    )
    messages: str | None = option("The column with conversations.", kept=True)
    system: str | None = option("Instructions before every prompt.", kept=True)
    image: tuple[str, ...] | None = option("The column with images, or several: a,b.", kept=True)
    audio: tuple[str, ...] | None = option("The column with sounds, or several: a,b.", kept=True)
    video: tuple[str, ...] | None = option("The column with videos, or several: a,b.", kept=True)
    few_shot: str | None = option("A file of examples.", kept=True)
    few_shot_answer: str = option("Their answers' column.  [default: answer]", default="answer")
    continuations: str | tuple[str, ...] | None = option(
        "Score this column's texts; generate nothing.", kept=True
    )
    batch: bool = False  # the input is an OpenAI batch file
    embed: bool = False  # vectors are wanted; `sampling` then has what jobs/vectors.py lists
    transcribe: bool = False  # of sounds; `sampling` has what inputs/transcript_params.py lists
    chat: bool | None = option(_CHAT, "--chat/--raw", type=bool, kept=True)
    schema: str | None = option("JSON schema of the answers, or its file.")
    schema_column: str | None = option("The column with each row's own schema.", kept=True)
    regex: str | None = option("Regular expression of the answers.")
    choice: tuple[str, ...] | None = option("The allowed answers: a,b,c.")
    choice_probs: bool = switch("Add how likely each of them is.", "--choice-probs", kept=True)
    grammar: str | None = option("Lark or GBNF grammar, or its file.")
    lora: Mapping[str, str] = field(
        default_factory=dict,
        metadata={"flag": Flag(_LORA, type=list[str], kept=True)},
    )
    lora_column: str | None = option("The column that names each row's adapter.", kept=True)
    id: str | None = option("The column that names rows.", kept="id_column")
    where: str | None = option('Jinja, which rows count: "stars > 3".', kept=True)
    limit: int | None = option("Only the first so many rows.", type=int, kept=True)
    shard: tuple[int, int] | None = option("Part i of n of the rows: 1/4.", kept=True)
    format: str | None = option(
        "jsonl, json, csv, tsv, parquet or arrow.  [by the ending]", kept="input_format"
    )
    sampling: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[Mapping[str, Any], ...] = ()
    seed: int = option("The seed of sampling.  [default: 0]", default=0, type=int, kept=True)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold a token
    output_column: str = option(
        "The answers' column.  [default: output]", default="output", kept=True
    )
    timings: bool = switch("Add columns with times.", "--timings", kept=True)
    replicas: int | None = option("Engines at once, that share the machine.", type=int)
    gpus: str | None = option("all, or numbers: 0,2. A replica on each.")
    ray: str | None = option("A Ray cluster that runs the replicas: HOST:PORT, or auto.")
    join: bool = switch(
        "Share the job with others that run this command on the same disk.", "--join", kept=True
    )
    job: str | None = option("The job's directory.  [default: OUTPUT.quire]")
    overwrite: bool = switch("Begin again from nothing.", "--overwrite")
    reuse: bool = switch("Keep the unchanged rows of a changed job.", "--reuse")
    retry_failed: bool = switch("Try failed rows once more.", "--retry-failed")

    def media_columns(self) -> dict[str, tuple[str, ...]]:
        """The columns with media, by kind; empty where there are none."""
        found = {"image": self.image, "audio": self.audio, "video": self.video}
        return {kind: columns for kind, columns in found.items() if columns is not None}

    def kept(self) -> dict[str, Any]:
        """The options that the rows of a job depend on, by their names in a manifest."""
        return {name: getattr(self, each) for each, name in _kept()}


# Sampling parameters and engine options that have flags of their own; the others go by
# --param NAME=VALUE and --option NAME=VALUE, and from Python by their names.
SAMPLING_FLAGS: dict[str, Flag] = {
    "max_tokens": Flag("The longest answer.  [default: 256]", type=int),
    "temperature": Flag("0 is greedy.  [default: 0]", type=float),
    "top_p": Flag("Draw from the likeliest tokens of this mass.", type=float),
    "top_k": Flag("Draw from so many likeliest tokens.", type=int),
    "min_p": Flag("Drop tokens below this share of the likeliest.", type=float),
    "n": Flag("Answers per row.", ("--n", "-n"), type=int),
    "stop": Flag("A text that ends an answer; may be repeated.", type=list[str]),
    "param": Flag("Any other sampling parameter: NAME=VALUE.", type=list[str]),
    "option": Flag("An option of the engine: NAME=VALUE.", type=list[str]),
    "tensor_parallel_size": Flag(
        "GPUs, or ranks on a CPU, that divide the model.",
        ("--tensor-parallel-size", "-tp"),
        type=int,
    ),
}
ENGINE_FLAGS = ("tensor_parallel_size",)


def flags() -> Iterator[tuple[str, Flag]]:
    """Every option that is a flag, in the order of the help text."""
    for each in fields(RunOptions):
        if each.name == "id":
            yield from SAMPLING_FLAGS.items()
        if "flag" in each.metadata:
            yield each.name, each.metadata["flag"]


def with_flags(options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Engine options, and those of `given` that have flags of their own; InvalidOption where one is
    given both ways, and differently."""
    own = {name: given[name] for name in ENGINE_FLAGS if given.get(name) is not None}
    for name, value in own.items():
        if options.get(name, value) != value:
            raise InvalidOption(
                f"{name} is given twice, as {value!r} and among the engine's options as "
                f"{options[name]!r}. Leave one of them out.",
                parameter=name,
                value=value,
            )
    return {**options, **own}


def kept_names() -> tuple[str, ...]:
    """The names in a manifest of the options that its rows depend on."""
    return tuple(name for _, name in _kept())


def _kept() -> Iterator[tuple[str, str]]:
    """Such options: each with its own name and its name in a manifest."""
    for each in fields(RunOptions):
        if each.metadata and (kept := each.metadata["flag"].kept):
            yield each.name, each.name if kept is True else kept
