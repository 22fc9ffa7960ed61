"""The same products on processors that are not here, emulated: no path crashes or rounds otherwise.

Slow, because everything is compiled again; needs `qemu-user` and, for aarch64, a cross compiler
(Debian: qemu-user, gcc-aarch64-linux-gnu).
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from quire.backends.cpu.native.build import FLAGS, SOURCES, sources

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).with_name("products.c")
# Emulated processor -> what its features must be, by quire.h, and which paths it must take.
X86 = {"Nehalem": (0, {0}), "Haswell": (1 << 3, {0, 1})}
ARM = {"cortex-a57": (1, {0}), "neoverse-n1": (3, {0, 5}), "max": (7, {0, 5, 6})}


def needed(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not here")
    return found


def compiled(compiler: str, room: Path) -> str:
    program = room / "products"
    files = [str(PROGRAM), *map(str, sources())]
    command = [compiler, *FLAGS, "-static", f"-I{SOURCES}", *files, "-lm", "-o", str(program)]
    subprocess.run(command, check=True, timeout=400)
    return str(program)


def printed(*command: str) -> dict[str, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "end"
    return dict(line.split() for line in lines[:-1])


def check(found: dict[str, str], features: int, paths: set[int]) -> str:
    """The products, which must be the same by every path."""
    assert int(found["features"]) == features
    products = {name: value for name, value in found.items() if name.startswith("path")}
    assert set(products) == {f"path{number}" for number in paths}
    assert len(set(products.values())) == 1
    return f"{found['packed']} {found['rows']} {products['path0']}"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="made for x86-64")
def test_x86_processors_without_what_this_one_has(tmp_path: Path) -> None:
    emulator, program = needed("qemu-x86_64"), compiled(needed("gcc"), tmp_path)
    here = printed(program)
    expected = f"{here['packed']} {here['rows']} {here['path0']}"
    for processor, wanted in X86.items():
        assert check(printed(emulator, "-cpu", processor, program), *wanted) == expected


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compared with x86-64")
def test_arm_processors_give_the_same_bits(tmp_path: Path) -> None:
    emulator, cross = needed("qemu-aarch64"), needed("aarch64-linux-gnu-gcc")
    (tmp_path / "here").mkdir()
    here = printed(compiled(needed("gcc"), tmp_path / "here"))
    expected = f"{here['packed']} {here['rows']} {here['path0']}"
    program = compiled(cross, tmp_path)
    for processor, wanted in ARM.items():
        assert check(printed(emulator, "-cpu", processor, program), *wanted) == expected
