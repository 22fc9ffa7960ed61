"""A GGUF file is read as the `gguf` package reads it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from quire.errors import CorruptModel, ModelNotFound, UnsupportedModel
from quire.weights.gguf_file import GgufFile
from tests.weights import hostile
from tests.weights.tiny import tiny_model, write_gguf

gguf = pytest.importorskip("gguf")


@pytest.mark.parametrize(
    "is_default",
    [False, pytest.param(True, marks=pytest.mark.long)],  # the package takes seconds to read it
    ids=["tiny", "default model"],
)
def test_a_model_is_read_as_the_gguf_package_reads_it(
    is_default: bool, default_model: Path, tmp_path: Path
) -> None:
    path = default_model if is_default else write_gguf(tiny_model("llama"), tmp_path / "m.gguf")
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata.keys() == fields.keys()
    for key, value in fields.items():
        found = ours.metadata[key]
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == value, key
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert found.shape == tuple(int(n) for n in tensor.shape)[::-1]
        assert found.format.name == tensor.tensor_type.name
        assert (found.offset, found.num_bytes) == (tensor.data_offset, tensor.n_bytes)


def test_raw_bytes_are_those_in_the_file_and_cannot_be_written(tmp_path: Path) -> None:
    model = tiny_model("qwen2")
    file = GgufFile(write_gguf(model, tmp_path / "m.gguf"))
    norm = file.raw("output_norm.weight")
    expected = model.state_dict()["model.norm.weight"].numpy()
    np.testing.assert_array_equal(norm.view(np.float32), expected)
    with pytest.raises(ValueError, match="read-only"):
        norm[0] = 1


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "int16", "uint32", "int32"])
@pytest.mark.parametrize("value", [1, 100])
def test_whole_numbers_of_every_size_are_read(kind: str, value: int, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    getattr(writer, f"add_{kind}")("x", value)
    writer.add_uint64("large", 2**64 - 1)
    writer.add_int64("negative", -(2**63))
    writer.add_float64("half", 0.5)
    writer.add_bool("yes", True)
    writer.add_array("flags", [True, False])
    writer.add_array("none", ["only one"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    metadata = GgufFile(tmp_path / "m.gguf").metadata
    assert metadata["x"] == value
    assert (metadata["large"], metadata["negative"]) == (2**64 - 1, -(2**63))
    assert metadata["half"] == 0.5
    assert metadata["yes"] is True
    assert metadata["flags"].tolist() == [True, False]
    assert metadata["none"] == ["only one"]


def test_version_2_is_read_too(tmp_path: Path) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "m.gguf")
    raw = bytearray(path.read_bytes())
    before = GgufFile(path).tensors.keys()
    raw[4] = 2
    path.write_bytes(raw)
    assert GgufFile(path).tensors.keys() == before


def test_a_path_that_is_no_file_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing.gguf"):
        with pytest.raises(ModelNotFound, match="is not a file"):
            GgufFile(path)


def test_a_large_vocabulary_is_parsed_quickly(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_token_list([f"token{i}" for i in range(100_000)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    start = time.process_time()
    assert len(GgufFile(tmp_path / "m.gguf").metadata["tokenizer.ggml.tokens"]) == 100_000
    assert time.process_time() - start < 0.6


def test_nothing_here_needs_torch() -> None:
    modules = ["checkpoint", "formats", "gguf_config", "gguf_file", "names", "pull", "source"]
    imports = "; ".join(f"import quire.weights.{module}" for module in modules)
    code = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "head",
    [
        hostile.entry("x", hostile.STRING, struct.pack("<Q", 3 << 30)),
        hostile.entry("x", hostile.ARRAY, hostile.array(hostile.STRING, 3 << 27)),
        hostile.entry("x", hostile.ARRAY, hostile.array(0, 3 << 30)),
    ],
    ids=["a text", "texts", "numbers"],
)
def test_metadata_of_gigabytes_are_not_read(head: bytes, tmp_path: Path) -> None:
    """Of a file that does have as many bytes, most of them a hole."""
    path = tmp_path / "m.gguf"
    path.write_bytes(hostile.gguf_bytes((head,), (), data=b""))
    os.truncate(path, 4 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptModel, match="'x'"):
            GgufFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_counts_beyond_any_model_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for counts in ({"num_entries": 1 << 17}, {"num_tensors": 1 << 21}):
        path.write_bytes(hostile.gguf_bytes(**counts))  # type: ignore[arg-type]
        os.truncate(path, 1 << 30)
        with pytest.raises(CorruptModel, match="quire reads up to"):
            GgufFile(path)


def test_formats_that_were_given_up_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(hostile.gguf_bytes(tensors=(hostile.tensor("a", kind=31),)))
    with pytest.raises(UnsupportedModel, match="Q4_0_4_4"):
        GgufFile(path)
