"""Every option of a job, once: its name, type, default, help, and what of it a manifest keeps.

`quire.Job` takes them by name, `quire run` as flags (cli/job_options.py), a TOML file likewise;
the manifest compares those that results depend on (store/manifest.py). To add one, add a field
here, its check to options.py, and what it does.
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
    names: tuple[str, ...] = ()  # --the-name where none is said
    type: Any = str
    is_argument: bool = False
    # What the manifest calls it, where the rows of a job depend on it.
    kept_as: str | None = None


def option(
    help: str, *names: str, default: Any = None, type: Any = str, kept_as: str | None = None
) -> Any:
    """A field of RunOptions that is also a flag."""
    return field(default=default, metadata={"flag": Flag(help, names, type, kept_as=kept_as)})


_INPUT = "Files (JSON, CSV, Parquet, Arrow), folders, hf:owner/name:split, or - for stdin."
_LORA = "A LoRA adapter that rows use: NAME=PATH; may be repeated."
_CHAT = "Use the model's chat template or not; if it has one, yes."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Everything about a job. `rows` are input that a program hands over instead of files.

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
        'Jinja over columns: "Sum up: {{ text }}".', "--prompt", "-p", kept_as="prompt"
    )
    messages: str | None = option("The column with conversations.", kept_as="messages")
    system: str | None = option("Instructions before every prompt.", kept_as="system")
    image: tuple[str, ...] | None = option(
        "The column with images, or several: a,b.", kept_as="image"
    )
    audio: tuple[str, ...] | None = option(
        "The column with sounds, or several: a,b.", kept_as="audio"
    )
    video: tuple[str, ...] | None = option(
        "The column with videos, or several: a,b.", kept_as="video"
    )
    few_shot: str | None = option("A file of examples.", kept_as="few_shot")
    few_shot_answer: str = option("Their answers' column.  [default: answer]", default="answer")
    continuations: str | tuple[str, ...] | None = option(
        "Score this column's texts; generate nothing.", kept_as="continuations"
    )
    batch: bool = False  # the input is an OpenAI batch file
    embed: bool = False  # vectors are wanted; `sampling` then has what jobs/vectors.py lists
    transcribe: bool = False  # of sounds; `sampling` has what inputs/transcript_params.py lists
    chat: bool | None = option(_CHAT, "--chat/--raw", type=bool, kept_as="chat")
    schema: str | None = option("JSON schema of the answers, or its file.")
    schema_column: str | None = option(
        "The column with each row's own schema.", kept_as="schema_column"
    )
    regex: str | None = option("Regular expression of the answers.")
    choice: tuple[str, ...] | None = option("The allowed answers: a,b,c.")
    choice_probs: bool = option(
        "Add how likely each of them is.",
        "--choice-probs",
        default=False,
        type=bool,
        kept_as="choice_probs",
    )
    grammar: str | None = option("Lark or GBNF grammar, or its file.")
    lora: Mapping[str, str] = field(
        default_factory=dict,
        metadata={"flag": Flag(_LORA, type=list[str], kept_as="lora")},
    )
    lora_column: str | None = option(
        "The column that names each row's adapter.", kept_as="lora_column"
    )
    id: str | None = option("The column that names rows.", kept_as="id_column")
    where: str | None = option('Jinja, which rows count: "stars > 3".', kept_as="where")
    limit: int | None = option("Only the first so many rows.", type=int, kept_as="limit")
    shard: tuple[int, int] | None = option("Part i of n of the rows: 1/4.", kept_as="shard")
    format: str | None = option(
        "jsonl, csv, tsv or arrow.  [by the ending]", kept_as="input_format"
    )
    sampling: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[Mapping[str, Any], ...] = ()
    seed: int = option("The seed of sampling.  [default: 0]", default=0, type=int, kept_as="seed")
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold a token
    output_column: str = option(
        "The answers' column.  [default: output]", default="output", kept_as="output_column"
    )
    timings: bool = option(
        "Add columns with times.", "--timings", default=False, type=bool, kept_as="timings"
    )
    replicas: int | None = option("Engines at once, that share the machine.", type=int)
    gpus: str | None = option("all, or numbers: 0,2. A replica on each.")
    ray: str | None = option("A Ray cluster that runs the replicas: HOST:PORT, or auto.")
    join: bool = option(
        "Share the job with others that run this command on the same disk.",
        "--join",
        default=False,
        type=bool,
        kept_as="join",
    )
    job: str | None = option("The job's directory.  [default: OUTPUT.quire]")
    overwrite: bool = option("Begin again from nothing.", "--overwrite", default=False, type=bool)
    reuse: bool = option(
        "Keep the unchanged rows of a changed job.", "--reuse", default=False, type=bool
    )
    retry_failed: bool = option(
        "Try failed rows once more.", "--retry-failed", default=False, type=bool
    )

    def media_columns(self) -> dict[str, tuple[str, ...]]:
        """The columns with media, by kind; empty where there are none."""
        found = {"image": self.image, "audio": self.audio, "video": self.video}
        return {kind: columns for kind, columns in found.items() if columns is not None}

    def kept(self) -> dict[str, Any]:
        """What the rows of a job depend on, by its name in a manifest."""
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
    """Every option that is a flag, in the order of help: what is asked, how, of which rows."""
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
    """What a manifest calls the options that its rows depend on."""
    return tuple(name for _, name in _kept())


def _kept() -> Iterator[tuple[str, str]]:
    """Such options: their names, and those in a manifest."""
    for each in fields(RunOptions):
        if each.metadata and (name := each.metadata["flag"].kept_as) is not None:
            yield each.name, name
