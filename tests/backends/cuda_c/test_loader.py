"""CUDA C++ compiled by NVRTC: what is kept on disk, what is refused, and launches on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton

from quire.backends.cuda_c import nvrtc
from quire.backends.cuda_c.launch import SOURCES, CudaKernel, _source_of
from quire.backends.cuda_c.nvrtc import NoCudaC, machine_code

SOURCE = 'extern "C" __global__ void add(float* x, int n) { if (threadIdx.x < n) x[0] += ONE; }'
HOPPER = ("--gpu-architecture=sm_90a", "-DONE=1")


def has_compiler() -> bool:
    try:
        nvrtc._library()
    except NoCudaC:
        return False
    return True


compiles = pytest.mark.skipif(not has_compiler(), reason="no libnvrtc here")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert triton.knobs.cache.dir == str(tmp_path)
    return tmp_path / "quire-cuda"


@pytest.mark.skipif(has_compiler(), reason="libnvrtc is here")
def test_says_what_is_missing_without_the_compiler() -> None:
    with pytest.raises(NoCudaC, match="libnvrtc"):
        machine_code(SOURCE, HOPPER)


def test_kept_code_is_read_back_unless_it_is_damaged(own_cache: Path) -> None:
    path = own_cache / "some.cubin"
    assert nvrtc._read(path) is None
    nvrtc._write(path, b"code of a kernel")
    assert nvrtc._read(path) == b"code of a kernel"
    assert list(own_cache.iterdir()) == [path]
    path.write_bytes(path.read_bytes()[:-1])
    assert nvrtc._read(path) is None


@compiles
def test_compiles_once_and_by_options(own_cache: Path) -> None:
    made = machine_code(SOURCE, HOPPER)
    assert made == machine_code(SOURCE, HOPPER) and len(list(own_cache.iterdir())) == 1
    machine_code(SOURCE, (HOPPER[0], "-DONE=2"))
    assert len(list(own_cache.iterdir())) == 2


@compiles
def test_what_does_not_compile_is_refused_with_the_compilers_words() -> None:
    with pytest.raises(NoCudaC, match="ONE"):
        machine_code(SOURCE, HOPPER[:1])


@pytest.mark.gpu
def test_launches_on_torchs_stream_and_into_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "add.cu").write_text(SOURCE)
    file = str(tmp_path / "add.cu")  # an absolute path stays one behind SOURCES
    assert SOURCES / file == Path(file)
    kernel = CudaKernel(file, "add", {"ONE": 1}, threads=1)
    x = torch.zeros(1, device="cuda")
    kernel((1, 1, 1), x, 1)
    assert x.item() == 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel((1, 1, 1), x, 1)
        CudaKernel(file, "add", {"ONE": 1}, threads=1, overlaps=True)((1, 1, 1), x, 1)
    graph.replay()
    graph.replay()
    assert x.item() == 5


@pytest.mark.parametrize("file", ["plain.cu", "prompt_attention.cu"])
def test_what_a_source_includes_stands_in_its_place(file: str) -> None:
    """So that kept machine code is another when only the included file has changed."""
    text = _source_of(file)
    assert "#include" not in text
    assert "void barrier_init" in text
