"""`quire doctor`: what this machine can do, and what is missing.

It never fails because something is missing, since its task is to report that.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from quire.base.home import quire_home
from quire.cli import exits
from quire.cli.terminal import say, say_json
from quire.safe_text import one_line

# Packages that `generate` needs; torch has a finding of its own.
NEEDED = ("numpy", "tokenizers", "safetensors", "jinja2", "tqdm")
HUB = "huggingface.co"
ROOM_FOR_A_MODEL = 2e9  # bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `state` is "ok", "note" or "missing"."""

    name: str
    state: str
    text: str


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what this machine can do, and what is missing."""
    checks: list[Callable[[], Finding]] = [
        _python, _packages, _torch, _device, _kernels, _cuda, _disk, _hub, _models,
    ]  # fmt: skip
    findings = [check() for check in checks]
    if as_json:
        say_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            say(f"{finding.name:<9} {finding.state:<8} {one_line(finding.text)}")
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(exits.UNAVAILABLE)


def _python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if platform.system() != "Linux":
        return Finding("python", "note", f"{found}: quire is tested on Linux alone")
    return Finding("python", "ok", found)


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _packages() -> Finding:
    absent = [name for name in NEEDED if _version(name) is None]
    if absent:
        return Finding("packages", "missing", f"pip install {' '.join(absent)}")
    return Finding("packages", "ok", ", ".join(f"{name} {_version(name)}" for name in NEEDED))


def _torch() -> Finding:
    found = _version("torch")
    if found is None:
        return Finding("torch", "missing", "pip install 'torch>=2.11'")
    if tuple(int(part) for part in found.split("+")[0].split(".")[:2]) < (2, 11):
        return Finding("torch", "missing", f"{found} is too old: pip install 'torch>=2.11'")
    return Finding("torch", "ok", found)


def _device() -> Finding:
    try:
        from quire.executor.probe import device_facts
    except (ImportError, OSError) as error:  # torch is absent, or its libraries do not load
        return Finding("device", "missing", f"torch cannot be imported: {error}")
    facts = device_facts()
    free, total = facts.memory_free / 1e9, facts.memory_total / 1e9
    fast = ", ".join(facts.fast_dtypes) or "none; float32 it is"
    return Finding(
        "device",
        "ok",
        f"{facts.device}, {facts.num_cores} cores, {free:.1f} of {total:.1f} GB free, "
        f"faster than float32: {fast}",
    )


def _kernels() -> Finding:
    try:
        from quire.backends.cpu.native.library import loaded
    except (ImportError, OSError):
        return Finding("kernels", "note", "unknown without torch")
    found = loaded()
    if found.library is None:
        return Finding(
            "kernels", "note", f"{found.text}; a C compiler (gcc, clang) makes it faster"
        )
    return Finding("kernels", "ok", found.text)


def _cuda() -> Finding:
    try:
        import torch
    except (ImportError, OSError):
        return Finding("cuda", "note", "unknown without torch")
    if not torch.cuda.is_available():
        return Finding("cuda", "note", "none; the CPU does the work")
    return Finding("cuda", "ok", f"torch sees {torch.cuda.get_device_name(0)}")


def _disk() -> Finding:
    home = quire_home()
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    text = f"{free / 1e9:.1f} GB free at {home}"
    if free < ROOM_FOR_A_MODEL:
        return Finding("disk", "note", f"{text}; set QUIRE_HOME to a folder with more room")
    return Finding("disk", "ok", text)


def _hub() -> Finding:
    import socket

    from quire.weights.pull import offline

    if offline():
        return Finding("hub", "note", "offline, as HF_HUB_OFFLINE says; local models only")
    try:
        socket.create_connection((HUB, 443), timeout=2).close()
    except OSError:
        return Finding("hub", "note", f"{HUB} is not reachable; try `quire pull smollm2`")
    return Finding("hub", "ok", f"{HUB} is reachable")


def _models() -> Finding:
    from quire.weights.pull import ALIASES, cached

    found = {alias.name: path for alias in ALIASES.values() if (path := cached(alias))}
    if not found:
        return Finding("models", "note", "none here yet; `quire pull smollm2` fetches one of 98 MB")
    sizes = [f"{name} ({path.stat().st_size / 1e6:.0f} MB)" for name, path in found.items()]
    return Finding("models", "ok", ", ".join(sizes))
