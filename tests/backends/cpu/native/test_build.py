"""The library is compiled once, whole or not at all, and nothing falls over where it cannot be."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.backends.cpu.native import build, library
from quire.backends.cpu.native.build import BuildFailed, built

TRIVIAL = """
#include <stdint.h>
__attribute__((visibility("default"))) int64_t quire_abi(void) { return ABI; }
""".replace("ABI", str(library.ABI))

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in build.COMPILERS), reason="no C compiler here"
)


@pytest.fixture
def small_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty home, and a library that compiles in no time."""
    sources = tmp_path / "src"
    sources.mkdir()
    (sources / "one.c").write_text(TRIVIAL)
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path / "home"))
    return sources


@pytest.fixture
def loading_again() -> Iterator[None]:
    """What this process has loaded is forgotten for a while."""
    library.loaded.cache_clear()
    yield
    library.loaded.cache_clear()


@needs_compiler
def test_the_second_time_it_is_there(small_sources: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "quire")
    first = built()
    assert first.seconds is not None and first.path.is_file()
    assert built() == build.Built(first.path, None)
    assert caplog.text.count("compiling the CPU kernels into") == 1
    assert first.path.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in first.path.parent.iterdir()] == [first.path.name]


@needs_compiler
def test_another_source_is_another_library(small_sources: Path) -> None:
    first = built()
    (small_sources / "one.c").write_text(TRIVIAL + "int extra(void) { return 2; }\n")
    assert built().path != first.path
    (small_sources / "new.h").write_text("")
    assert built().seconds is not None


@needs_compiler
def test_another_compiler_or_flag_is_another_library(
    small_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = built()
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-O1"))
    assert built().path != first.path


@needs_compiler
def test_a_source_that_does_not_compile_says_so_and_leaves_nothing(small_sources: Path) -> None:
    (small_sources / "two.c").write_text("int broken(\n")
    with pytest.raises(BuildFailed, match="error"):
        built()
    assert list(build.folder().iterdir()) == []


def test_without_a_compiler_it_says_what_it_looked_for(
    small_sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildFailed, match="cc, gcc, clang"):
        built()


@needs_compiler
def test_a_home_that_cannot_be_written_is_no_library(
    small_sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(BuildFailed, match="cannot be written"):
        built()


@needs_compiler
def test_a_library_that_others_may_have_written_is_made_again(small_sources: Path) -> None:
    path = built().path
    path.chmod(0o777)
    again = built()
    assert again.seconds is not None and again.path.stat().st_mode & 0o022 == 0


@needs_compiler
def test_what_was_checked_is_what_is_loaded(small_sources: Path) -> None:
    """Somebody gives another library the name, between the look at the first and the loading."""
    made = built()
    (small_sources / "one.c").write_text(TRIVIAL.replace(f"return {library.ABI}", "return 77"))
    built().path.replace(made.path)
    assert library._load(made).quire_abi() == library.ABI


@needs_compiler
def test_a_damaged_library_is_made_again(small_sources: Path) -> None:
    """As a power cut leaves one: loading it could end the process."""
    path = built().path
    path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    again = built()
    assert again.seconds is not None and library._load(again).quire_abi() == library.ABI


@needs_compiler
@pytest.mark.parametrize("unsafe", ["the folder", "one above it"])
def test_where_others_can_write_nothing_is_kept_or_taken(
    unsafe: str, small_sources: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO, "quire")
    planted = built().path
    (tmp_path / "home" / "native" if unsafe == "the folder" else tmp_path / "home").chmod(0o777)
    before = planted.read_bytes()
    made = built()
    assert made.seconds is not None and not made.path.exists()  # gone, but for the open file
    assert library._load(made).quire_abi() == library.ABI
    assert planted.read_bytes() == before
    assert "can be written by everybody. They are compiled anew" in caplog.text


@needs_compiler
def test_without_any_safe_folder_torch_computes(
    small_sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path / "open" / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "open"))
    with pytest.raises(BuildFailed, match="no folder is safe to load code from"):
        built()


@needs_compiler
def test_processes_that_build_at_once_all_succeed(small_sources: Path) -> None:
    code = (
        "import sys, ctypes; from pathlib import Path; from quire.backends.cpu.native import build;"
        "build.SOURCES = Path(sys.argv[1]); path = build.built().path;"
        "print(ctypes.CDLL(str(path)).quire_abi())"
    )
    command = [sys.executable, "-c", code, str(small_sources)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [process.communicate(timeout=60)[0].strip() for process in running]
    assert said == [str(library.ABI)] * 4
    assert len(list(build.folder().iterdir())) == 1


def test_a_failing_compiler_means_torch_and_one_note(
    small_sources: Path,
    loading_again: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    caplog.set_level(logging.INFO, "quire")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert library.library() is None and library.library() is None
    said = caplog.text
    assert said.count("no native CPU kernels") == 1 and "torch computes instead" in said
    assert library.loaded().text.startswith("torch only: no C compiler")


@needs_compiler
def test_a_library_of_another_version_is_not_used(
    small_sources: Path, loading_again: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quire")
    (small_sources / "one.c").write_text(TRIVIAL.replace(f"return {library.ABI}", "return 77"))
    assert library.library() is None
    assert "version 77" in caplog.text


@needs_compiler
def test_the_real_sources_export_what_the_header_promises() -> None:
    header = (build.SOURCES / "quire.h").read_text()
    names = {
        part.split("(")[0].split()[-1].lstrip("*")
        for part in header.split("QUIRE_EXPORT")[2:]
        if "(" in part
    }
    found = library.library()
    assert found is not None and len(names) >= 10
    assert [name for name in sorted(names) if not hasattr(found, name)] == []


@pytest.mark.parametrize("compiler", ["cc", "aarch64-linux-gnu-gcc"])
def test_a_compiler_has_nothing_to_say_about_the_real_sources(compiler: str) -> None:
    read_by(compiler, "-Wextra", *map(str, build.sources()))


@pytest.mark.parametrize("version", [7, 9])
def test_an_older_compiler_for_arm_leaves_out_what_it_does_not_know(version: int) -> None:
    """A path of 8-bit products, and not the library: GCC 9 has no int8 matrices."""
    source = str(build.SOURCES / "int8_arm.c")
    as_older = ("aarch64-linux-gnu-gcc", "-U__GNUC__", f"-D__GNUC__={version}", source)
    read_by(*as_older)
    kept = read_by(*as_older, "-E")
    known = [name for name in ("unit_dot", "unit_i8mm") if f"void {name}(" in kept]
    assert known == (["unit_dot"] if version >= 8 else [])


def read_by(compiler: str, *arguments: str) -> str:
    """What a compiler prints that only reads, and is to say nothing."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not here")
    flags = [flag for flag in build.FLAGS if flag != "-w"]
    command = [compiler, *flags, "-fsyntax-only", "-Wall", "-Werror", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


@needs_compiler
def test_it_computes_in_torchs_threads_and_brings_none() -> None:
    """The threads of a process that used both: as many as torch alone has."""
    code = """
import os, torch
from quire.backends.cpu.native.kernels import native_kernels
from quire.backends.ops import HeadShape
torch.set_num_threads(3)
torch.randn(512, 512) @ torch.randn(512, 512)
x = torch.randn(2048, 512); x.exp()
before = len(os.listdir("/proc/self/task"))
kernels = native_kernels(HeadShape(4, 2, 16, 16, torch.float32), batch_invariant=False)
for _ in range(5):
    kernels.rms_norm(x, torch.ones(512), 1e-5)
    x.exp()
print(before, len(os.listdir("/proc/self/task")), kernels.library.quire_num_threads())
torch.set_num_threads(1)
print(kernels.library.quire_num_threads())
"""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(build.__file__).parents[4],
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    before, after, three, one = (int(word) for word in run.stdout.split())
    assert (after, three, one) == (before, 3, 1)
