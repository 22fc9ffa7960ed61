"""GGUF metadata becomes the same spec, with what only the tensors say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quire.errors import CorruptModel, UnsupportedModel
from quire.layer_parts.rope import FactorRope, LinearRope
from quire.weights.gguf_config import spec_from_gguf
from quire.weights.gguf_file import GgufFile
from tests.weights.tiny import tiny_model, write_gguf


def test_the_default_model_is_described_exactly(default_model: Path) -> None:
    spec = spec_from_gguf(GgufFile(default_model))
    assert (spec.family, spec.vocab_size, spec.hidden_size) == ("llama", 49152, 576)
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (30, 9, 3, 64)
    assert (spec.norm_eps, spec.rope.theta, spec.max_model_len) == (1e-5, 100000.0, 8192)
    assert spec.tied_embeddings
    assert (spec.bos_id, spec.eos_ids) == (1, (2,))


def test_frequency_factors_of_llama_3_are_read_from_their_tensor(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    write_gguf(tiny_model("llama"), tmp_path / "m", tensors={"rope_freqs.weight": factors})
    spec = spec_from_gguf(GgufFile(tmp_path / "m"))
    assert spec.rope.scaling == FactorRope(tuple(factors.tolist()))


@pytest.mark.parametrize(
    "factors", [np.ones(7, np.float32), np.zeros(8, np.float32), np.full(8, np.nan, np.float32)]
)
def test_frequency_factors_that_cannot_be_are_refused(tmp_path: Path, factors: np.ndarray) -> None:
    write_gguf(tiny_model("llama"), tmp_path / "m", tensors={"rope_freqs.weight": factors})
    with pytest.raises(CorruptModel, match=r"rope_freqs\.weight"):
        spec_from_gguf(GgufFile(tmp_path / "m"))


def test_linear_scaling_and_a_mistral_window_are_read(tmp_path: Path) -> None:
    metadata: dict[str, int | float | str] = {
        "{arch}.rope.scaling.type": "linear",
        "{arch}.rope.scaling.factor": 4.0,
        "{arch}.attention.sliding_window": 32,
    }
    write_gguf(tiny_model("mistral"), tmp_path / "m", metadata=metadata)
    spec = spec_from_gguf(GgufFile(tmp_path / "m"))
    assert spec.rope.scaling == LinearRope(4.0)
    assert spec.windows == (32, 32)
    assert spec.family == "mistral"


@pytest.mark.parametrize(
    ("said", "scaling"),
    [
        ({"rope.scaling.factor": 4.0}, LinearRope(4.0)),
        ({"rope.scale_linear": 4.0}, LinearRope(4.0)),
        ({"rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}, LinearRope(2.0)),
        ({"rope.scaling.type": "linear", "rope.scale_linear": 4.0}, LinearRope(4.0)),
        ({"rope.scaling.type": "none", "rope.scale_linear": 4.0}, None),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
        ({"rope.scaling.factor": 0.0}, None),
        ({}, None),
    ],
    ids=str,
)
def test_a_scaling_without_a_kind_is_linear_as_llama_cpp_has_it(
    said: dict[str, float | str], scaling: LinearRope | None, tmp_path: Path
) -> None:
    metadata = {f"{{arch}}.{key}": value for key, value in said.items()}
    write_gguf(tiny_model("llama"), tmp_path / "m", metadata=metadata)
    assert spec_from_gguf(GgufFile(tmp_path / "m")).rope.scaling == scaling


@pytest.mark.parametrize("window", [9, 4096], ids=["in the context", "beyond it"])
@pytest.mark.parametrize(
    ("said", "full"),
    [(None, {5}), (3, {2, 5}), ([True, False] * 3 + [True], {1, 3, 5}), ([True] * 7, set())],
    ids=["the family's own", "every third", "marks", "one mark for all"],
)
def test_which_layers_have_a_window(
    said: int | list[bool] | None, full: set[int], window: int, tmp_path: Path
) -> None:
    """Where it is longer than any text too: those layers have a theta of their own."""
    model = tiny_model("gemma3", num_hidden_layers=7, sliding_window=window)
    pattern = {} if said is None else {"{arch}.attention.sliding_window_pattern": said}
    write_gguf(model, tmp_path / "m", metadata=pattern)
    spec = spec_from_gguf(GgufFile(tmp_path / "m"))
    assert spec.windows == tuple(None if i in full else window for i in range(7))
    thetas = {layer.attention.rope.theta for layer in spec.layers if layer.attention.window}
    assert thetas == {1e4}


@pytest.mark.parametrize("said", [1, [True, False]])
def test_a_pattern_that_names_no_layers_is_refused(said: int | list[bool], tmp_path: Path) -> None:
    pattern = {"{arch}.attention.sliding_window_pattern": said}
    write_gguf(tiny_model("gemma3", num_hidden_layers=7), tmp_path / "m", metadata=pattern)
    with pytest.raises(CorruptModel, match="a number above 1, or a mark for each of 7 layers"):
        spec_from_gguf(GgufFile(tmp_path / "m"))


def test_overrides_are_in_hugging_face_words_here_too(tmp_path: Path) -> None:
    write_gguf(tiny_model("qwen2"), tmp_path / "m")
    spec = spec_from_gguf(GgufFile(tmp_path / "m"), {"max_position_embeddings": 77})
    assert spec.max_model_len == 77


@pytest.mark.parametrize(
    ("family", "metadata", "words"),
    [
        ("qwen2", {"{arch}.expert_count": 8, "{arch}.expert_used_count": 2}, "experts"),
        ("llama", {"{arch}.rope.dimension_count": 8}, "rope.dimension_count 8"),
        ("qwen2", {"{arch}.attention.sliding_window": 32}, "sliding window of 32"),
        (
            "mistral",
            {"{arch}.attention.sliding_window": 32, "{arch}.rope.freq_base_swa": 77.0},
            "rope.freq_base_swa must be that of all layers in the family mistral",
        ),
    ],
)
def test_what_quire_does_not_run_is_refused(
    family: str, metadata: dict[str, int | float | str], words: str, tmp_path: Path
) -> None:
    write_gguf(tiny_model(family), tmp_path / "m", metadata=metadata)
    with pytest.raises(UnsupportedModel, match=words):
        spec_from_gguf(GgufFile(tmp_path / "m"))


def test_fewer_layers_than_there_are_tensors_of_is_refused(tmp_path: Path) -> None:
    """They were left out, and the rest ran."""
    model = tiny_model("llama")
    more = {"blk.2.attn_norm.weight": np.ones(64, np.float32)}
    path = write_gguf(model, tmp_path / "m.gguf", tensors=more)
    with pytest.raises(CorruptModel, match=r"block_count is 2; there are tensors of blk\.2"):
        spec_from_gguf(GgufFile(path))


def test_a_number_of_layers_that_guess_ahead_must_be_one(tmp_path: Path) -> None:
    from tests.parity.more_families import random_model
    from tests.weights.gguf_families import write
    from tests.weights.test_gguf_families import CASES

    arch, config, said = CASES["deepseek v3, not renormalised"]
    random_model(config).save_pretrained(tmp_path)
    path = tmp_path / "m.gguf"
    write(tmp_path, path, config, arch, {**said, "nextn_predict_layers": float("nan")})
    with pytest.raises(CorruptModel, match="nextn_predict_layers must be a whole number from 0"):
        spec_from_gguf(GgufFile(path))


@pytest.mark.parametrize("quantised", ["F16", "BF16", "Q8_0", "F32"])
def test_the_dtype_is_the_one_the_layers_are_stored_in(quantised: str, tmp_path: Path) -> None:
    write_gguf(tiny_model("qwen3"), tmp_path / "m", quantised=quantised)
    expected = {"F16": "float16", "BF16": "bfloat16"}.get(quantised, "float32")
    assert spec_from_gguf(GgufFile(tmp_path / "m")).dtype == expected


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    metadata: dict[str, int | float | str] = {"general.type": "adapter"}
    write_gguf(tiny_model("llama"), tmp_path / "m", metadata=metadata)
    with pytest.raises(UnsupportedModel, match="'adapter' is no model"):
        spec_from_gguf(GgufFile(tmp_path / "m"))
