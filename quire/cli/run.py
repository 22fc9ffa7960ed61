"""`quire run`: answers every row of a table; after any stop the same command continues."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.base.durations import duration
from quire.cli import exits
from quire.cli import job_options as o
from quire.cli.paths import path
from quire.cli.terminal import say, say_json
from quire.cli.toml_text import toml_text
from quire.errors import Interrupted, InvalidOption, JobStopped

if TYPE_CHECKING:
    from quire.jobs.job import Job, JobReport
    from quire.jobs.supervise.failures import Failures

_MOST_FAILURES, _LONGEST = 5, 200  # causes that are printed at the end, and characters of each


@o.takes()
def run(
    *,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file with these options.", parser=path)
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it takes, and stop.")] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print these options as TOML, and stop.")
    ] = False,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
    **written: Any,
) -> None:
    """Answer every row of a table; run it again and it goes on."""
    options = merged(read_config(config), parsed(written))
    made = made_of(options, "run INPUT --model M --prompt TEMPLATE -o OUTPUT")
    if print_config:
        say(toml_text(_without_token(options)))
    elif plan:
        say(made.plan())
    else:
        execute(made, as_json=as_json, quiet=quiet)


def _without_token(options: dict[str, Any]) -> dict[str, Any]:
    """The options without secrets, for a file that may be shared."""
    from quire.jobs.store import secrets

    given = options.get("options")
    if not isinstance(given, dict) or not secrets.of(given):
        return options
    say("quire: hf_token is left out; set HF_TOKEN instead", err=True)
    return {**options, "options": secrets.without(given)}


def read_config(file: Path | None) -> dict[str, Any]:
    """The options of a TOML file, which have the names of the command line."""
    if file is None:
        return {}
    import tomllib

    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{file} is no TOML: {error}", parameter="config") from None
    return {name.replace("-", "_"): value for name, value in found.items()}


def merged(config: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """Joins both; flags win. Sampling parameters and engine options are joined one by one."""
    both = {**config, **flags}
    for name in ("sampling", "options"):
        if isinstance(config.get(name), dict) and name in flags:
            both[name] = {**config[name], **flags[name]}
    return both


def parsed(written: dict[str, Any]) -> dict[str, Any]:
    """The flags that were written, as options of a Job."""
    options = {name: value for name, value in written.items() if value not in (None, [], ())}
    for listed in ("choice", "image", "audio", "video"):
        if listed in options:
            options[listed] = [each.strip() for each in options[listed].split(",")]
    for flag, name in (("param", "sampling"), ("option", "options")):
        if flag in options:
            options[name] = o.assignments(options.pop(flag), flag)
    return options


def made_of(options: Mapping[str, Any], usage: str) -> Job:
    """The job of these options, which this command continues. If an option is missing that every
    job needs, the error shows `usage`."""
    from quire.jobs.job import Job

    for name in ("input", "output", "model"):
        if name not in options:
            raise InvalidOption(f"{name} is missing: quire {usage}", parameter=name)
    return Job(**options, command=["quire", *sys.argv[1:]])


def execute(job: Job, *, as_json: bool, quiet: bool) -> None:
    """Run the job and report its result."""
    try:
        report = job.run(progress=not quiet)
    except Interrupted as stopped:  # as a KeyboardInterrupt it would end the command in silence
        raise JobStopped(str(stopped)) from None
    except KeyboardInterrupt:  # the second Ctrl-C: the job did not stop cleanly
        exits.fail(
            "interrupted; what was acknowledged is on disk, and the same command continues",
            exits.INTERRUPTED,
        )
    finish(report, as_json=as_json)


def finish(report: JobReport, *, as_json: bool) -> None:
    """Print the result, and exit with 3 if some rows failed."""
    if as_json:
        say_json(facts(report))
    else:
        say(summary(report), err=True)
    if report.num_failed:
        raise typer.Exit(exits.SOME_FAILED)


def summary(report: JobReport) -> str:
    restarts = f"; the engine was restarted {report.num_restarts}x" if report.num_restarts else ""
    kind = "output" if report.output_tokens else "prompt"  # an embedding has no output tokens
    tokens = report.output_tokens or report.prompt_tokens
    rate = tokens / report.seconds if report.seconds else 0.0
    failed = (
        f"; {report.num_failed:,} failed (`quire show --failed` shows them, --retry-failed tries "
        "them again)"
        if report.num_failed
        else ""
    )
    now, pace = "", f" in {duration(report.seconds)}, {rate:,.0f} {kind} tok/s{restarts}"
    if report.num_before:
        now = f", {report.num_rows - report.num_before:,} of them now"
    if not report.seconds:
        now, pace = ", all of them before" if report.num_before else "", ""
    if not report.num_rows:
        now = " (the input has none, or none that --where and its like choose)"
    return (
        f"quire: {report.num_ok:,} of {report.num_rows:,} rows answered{now}{failed}{pace}: "
        f"{report.output}" + "".join(_failure(found) for found in report.failures[:_MOST_FAILURES])
    )


def _failure(found: Failures) -> str:
    described = found.example if len(found.example) <= _LONGEST else found.example[:_LONGEST] + "…"
    return f"\n  {found.count:,} {found.error_type}: {described}"


def facts(report: JobReport) -> dict[str, Any]:
    return {
        "output": str(report.output),
        "job": str(report.job_dir),
        "rows": report.num_rows,
        "ok": report.num_ok,
        "failed": report.num_failed,
        "before": report.num_before,
        "seconds": round(report.seconds, 3),
        "prompt_tokens": report.prompt_tokens,
        "output_tokens": report.output_tokens,
        "restarts": report.num_restarts,
        "failures": {found.error_type: found.count for found in report.failures},
    }
