"""`quire transcribe`: the text of sounds, with the journal of a job."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from quire.cli import job_options as o
from quire.cli.run import execute, made_of, parsed

_FILES = "Files (WAV, FLAC, OGG, MP3, M4A, MP4, WebM and others), or folders of sounds."
_OUTPUT = ".jsonl, a line for each file; of one file also .txt, .srt or .vtt."


@o.takes(
    *("model", "option", "limit", "replicas", "gpus"),
    *("job", "overwrite", "reuse", "retry_failed"),
)
def transcribe(
    *,
    input: Annotated[list[str], typer.Argument(help=_FILES, metavar="INPUT...")],
    output: Annotated[str, typer.Option("--output", "-o", help=_OUTPUT)],
    language: Annotated[
        str | None, typer.Option(help="What is spoken: en.  [each piece tells]")
    ] = None,
    task: Annotated[
        str, typer.Option(help="transcribe, or translate into English.")
    ] = "transcribe",
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Segments as the model hears them, not by piece.")
    ] = False,
    initial_prompt: Annotated[
        str | None, typer.Option(help="Said before every piece: names as they are spelled.")
    ] = None,
    temperature: Annotated[
        str | None, typer.Option(help="0, or several to try in turn: 0,0.4.  [0,0.2 ... 1]")
    ] = None,
    compression_ratio_threshold: Annotated[
        float | None, typer.Option(help="Above it an answer is doubted.  [2.4]")
    ] = None,
    logprob_threshold: Annotated[float | None, typer.Option(help="Below it, too.  [-1]")] = None,
    no_speech_threshold: Annotated[
        float | None, typer.Option(help="Above it such an answer is silence.  [0.6]")
    ] = None,
    seconds: Annotated[float, typer.Option(help="The longest piece that is heard at once.")] = 30.0,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
    **written: Any,
) -> None:
    """Write down what is said in every file; run it again and it goes on."""
    options = dict(
        parsed(written),
        input=input,
        output=output,
        transcribe=True,
        language=language,
        task=task,
        timestamps=timestamps,
        initial_prompt=initial_prompt,
        temperature=None if temperature is None else temperature.split(","),
        compression_ratio_threshold=compression_ratio_threshold,
        logprob_threshold=logprob_threshold,
        no_speech_threshold=no_speech_threshold,
        seconds=seconds,
    )
    made = made_of(options, "transcribe FILES --model M -o OUTPUT")
    execute(made, as_json=as_json, quiet=quiet)
