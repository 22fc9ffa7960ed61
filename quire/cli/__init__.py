"""The command `quire`: one file per verb, errors as one line, exit codes that scripts can trust.

Verbs import what they need when they run, so that `quire --help` answers at once. Nothing else
in quire imports this room.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import typer

from quire.cli import (
    batch,
    chat,
    doctor,
    embed,
    evaluate,
    exits,
    export,
    merge,
    pull,
    report,
    run,
    score,
    serve,
    show,
    terminal,
    transcribe,
)
from quire.params import rules

app = typer.Typer(
    name="quire",
    help="Generate text from language models in bulk.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: styled help alone would double the start-up time
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("pull")(pull.pull)
app.command("chat")(chat.chat)
app.command("run")(run.run)
app.command("merge")(merge.merge)
app.command("batch")(batch.batch)
app.command("embed")(embed.embed)
app.command("transcribe")(transcribe.transcribe)
app.command("serve")(serve.serve)
app.command("score")(score.score)
app.command("eval")(evaluate.evaluate)
app.command("report")(report.report)
app.command("export")(export.export)
app.command("ls")(show.ls)
app.command("show")(show.show)
app.command("diff")(show.diff)
app.command("doctor")(doctor.doctor)


@app.callback(invoke_without_command=True)
def version(
    show: bool = typer.Option(False, "--version", help="Print the version and leave."),
) -> None:
    """Generate text from language models in bulk."""
    if show:
        from quire import __version__

        terminal.say(f"quire {__version__}")
        raise typer.Exit


def _open_standard_streams() -> None:
    """Open stdin, stdout and stderr if a service started us without them. Else the next files would
    get their descriptors, and a library that writes to stderr would write into a job's journal."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit with its code; never returns."""
    _open_standard_streams()
    with exits.reported():
        try:
            code = app(args=arguments, prog_name="quire", standalone_mode=False)
        except _Usage as error:
            described = io.StringIO()
            error.show(described)
            words = sys.argv[1:] if arguments is None else arguments
            more = _value_of(error) + _other_spelling(error, words)
            terminal.say(described.getvalue().rstrip("\n") + more, err=True)
            sys.exit(error.exit_code)
        except typer.Abort:
            raise KeyboardInterrupt from None
        sys.exit(code if isinstance(code, int) else 0)


def _value_of(error: Any) -> str:
    """The value that an option refused, if the error itself does not name it."""
    found = getattr(error.__cause__, "errors", None)
    return "" if found is None else f", got {rules.show(found()[0]['input'])}"


def _other_spelling(error: Any, words: list[str]) -> str:
    """What to write instead of an option that is an argument here (`serve --model X`, `serve -m X`
    as other commands have it), or that is one of the engine's (`serve X --max-model-len 4096`,
    `serve X -dp 2`)."""
    option = str(getattr(error, "option_name", None) or "")
    word = option.lstrip("-").replace("-", "_")
    if not word or error.ctx is None:
        return ""
    for parameter in error.ctx.command.params:
        if parameter.param_type_name == "argument" and parameter.name.startswith(word):
            path, name = error.ctx.command_path, parameter.name.upper()
            return f"\nThe {parameter.name} is given without an option: {path} {name} ..."
    from quire.options.table import OPTIONS
    from quire.session.engine_args import SHORT

    takes_options = any("--option" in parameter.opts for parameter in error.ctx.command.params)
    # The error of the command line for -dp names only -d.
    short = {flag: name for name, flag in SHORT.items() if flag in words}
    word = next((name for flag, name in short.items() if flag.startswith(option)), word)
    name = word if word in OPTIONS else word.removeprefix("no_")
    if takes_options and name in OPTIONS:
        value = "VALUE" if name == word else "false"
        return f"\nAn option of the engine is given as --option {name}={value}"
    return ""


# The base class of errors about arguments; its module depends on the version of typer.
_Usage: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

__all__ = ["app", "main"]
