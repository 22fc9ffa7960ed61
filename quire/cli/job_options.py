"""The options of `quire run` and `quire batch`, each with what its help says."""

from __future__ import annotations

from typing import Annotated

import typer

_INPUT = "Files (JSON, CSV, Parquet, Arrow), folders, hf:owner/name:split, or - for stdin."
_CHAT = "Use the model's chat template or not; if it has one, yes."
Text = str | None
Number = int | None
Fraction = float | None
Many = list[str] | None

Inputs = Annotated[Many, typer.Argument(help=_INPUT, metavar="INPUT...")]
Output = Annotated[Text, typer.Option("--output", "-o", help="A .jsonl or .parquet file.")]
Model = Annotated[Text, typer.Option("--model", "-m", help="An alias (smollm2), a path or Hub id.")]
Prompt = Annotated[
    Text, typer.Option("--prompt", "-p", help='Jinja over columns: "Sum up: {{ text }}".')
]
Messages = Annotated[Text, typer.Option(help="The column with conversations.")]
System = Annotated[Text, typer.Option(help="Instructions before every prompt.")]
FewShot = Annotated[Text, typer.Option(help="A file of examples.")]
FewShotAnswer = Annotated[Text, typer.Option(help="Their answers' column.  [default: answer]")]
Continuations = Annotated[Text, typer.Option(help="Score this column's texts; generate nothing.")]
Chat = Annotated[bool | None, typer.Option("--chat/--raw", help=_CHAT)]
Schema = Annotated[Text, typer.Option(help="JSON schema of the answers, or its file.")]
SchemaColumn = Annotated[Text, typer.Option(help="The column with each row's own schema.")]
Regex = Annotated[Text, typer.Option(help="Regular expression of the answers.")]
Choice = Annotated[Text, typer.Option(help="The allowed answers: a,b,c.")]
ChoiceProbs = Annotated[
    bool | None, typer.Option("--choice-probs", help="Add how likely each of them is.")
]
Grammar = Annotated[Text, typer.Option(help="Lark or GBNF grammar, or its file.")]
MaxTokens = Annotated[Number, typer.Option(help="The longest answer.  [default: 256]")]
Temperature = Annotated[Fraction, typer.Option(help="0 is greedy.  [default: 0]")]
TopP = Annotated[Fraction, typer.Option(help="Tokens of this mass alone.")]
TopK = Annotated[Number, typer.Option(help="So many tokens alone.")]
MinP = Annotated[Fraction, typer.Option(help="Tokens of this share of the likeliest alone.")]
Answers = Annotated[Number, typer.Option("--n", "-n", help="Answers per row.")]
Stop = Annotated[Many, typer.Option(help="A text that ends an answer; may be repeated.")]
Param = Annotated[Many, typer.Option(help="Any other sampling parameter: NAME=VALUE.")]
Option = Annotated[Many, typer.Option(help="An option of the engine: NAME=VALUE.")]
Id = Annotated[Text, typer.Option(help="The column that names rows.")]
Where = Annotated[Text, typer.Option(help='Jinja, which rows count: "stars > 3".')]
Limit = Annotated[Number, typer.Option(help="The first so many rows.")]
Shard = Annotated[Text, typer.Option(help="Part i of n of the rows: 1/4.")]
Format = Annotated[Text, typer.Option(help="jsonl, csv, tsv or arrow.  [by the ending]")]
Seed = Annotated[Number, typer.Option(help="Of the noise.  [default: 0]")]
OutputColumn = Annotated[Text, typer.Option(help="The answers' column.  [default: output]")]
Timings = Annotated[bool | None, typer.Option("--timings", help="Add columns with times.")]
JobDir = Annotated[Text, typer.Option(help="The job's directory.  [default: OUTPUT.quire]")]
Config = Annotated[Text, typer.Option(help="A TOML file with these options.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Begin again from nothing.")]
Reuse = Annotated[bool, typer.Option("--reuse", help="Keep the unchanged rows of a changed job.")]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try failed rows once more.")]
ShowPlan = Annotated[bool, typer.Option("--plan", help="Say what it takes, and stop.")]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print these options as TOML, and stop.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
