"""Weights arrive under quire's names, packed, equal to the model they came from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from quire.errors import CorruptModel, NotEnoughMemory, UnsupportedModel
from quire.spec import ModelSpec, plain_decoder
from quire.weights import checks, load
from quire.weights.gguf_file import GgufFile
from quire.weights.load import dummy_weights, load_weights
from quire.weights.names import weights_of
from quire.weights.read_rows import read_tensor
from quire.weights.source import locate
from quire.weights.within import of_expert
from tests.weights.tiny import tiny_model, write_gguf

gguf = pytest.importorskip("gguf")

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "qwen3 with biases": ("qwen3", {"attention_bias": True}),
    "phi3": ("phi3", {"pad_token_id": 0}),
    "gemma3": ("gemma3", {"query_pre_attn_scalar": 16, "num_hidden_layers": 7}),
}


def read(path: Path, dtype: torch.dtype = torch.float32) -> tuple[ModelSpec, dict[str, Any]]:
    files = locate(str(path))
    spec = files.spec()
    return spec, load_weights(files, spec, dtype=dtype, device="cpu")


def as_quire_names_them(state: dict[str, torch.Tensor], spec: ModelSpec) -> dict[str, torch.Tensor]:
    """The same weights by plain concatenation, written without looking at the loader."""
    expected = {"embed.weight": state["model.embed_tokens.weight"]}
    expected["norm.weight"] = state["model.norm.weight"]
    around = "model.layers.0.pre_feedforward_layernorm.weight" in state
    if not spec.tied_embeddings:
        expected["head.weight"] = state["lm_head.weight"]
    for i in range(spec.num_layers):
        theirs, ours = f"model.layers.{i}.", f"layers.{i}."
        expected[f"{ours}attn_norm.weight"] = state[f"{theirs}input_layernorm.weight"]
        mlp_norm = "post_attention_layernorm"
        if around:
            expected[f"{ours}attn_post_norm.weight"] = state[f"{theirs}{mlp_norm}.weight"]
            mlp_norm = "pre_feedforward_layernorm"
            last = state[f"{theirs}post_feedforward_layernorm.weight"]
            expected[f"{ours}mlp_post_norm.weight"] = last
        expected[f"{ours}mlp_norm.weight"] = state[f"{theirs}{mlp_norm}.weight"]
        for packed, parts in {
            "attn.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            "attn.qkv fused": ["self_attn.qkv_proj"],
            "attn.o": ["self_attn.o_proj"],
            "attn.q_norm": ["self_attn.q_norm"],
            "attn.k_norm": ["self_attn.k_norm"],
            "mlp.gate_up": ["mlp.gate_proj", "mlp.up_proj"],
            "mlp.gate_up fused": ["mlp.gate_up_proj"],
            "mlp.down": ["mlp.down_proj"],
        }.items():
            for kind in ("weight", "bias"):
                found = [state.get(f"{theirs}{part}.{kind}") for part in parts]
                if found[0] is not None:
                    expected[f"{ours}{packed.split()[0]}.{kind}"] = torch.cat(
                        [t for t in found if t is not None]
                    )
    if around:  # its norms are of 1 + w
        norms = [name for name in expected if name.endswith("norm.weight")]
        expected |= {name: 1 + expected[name] for name in norms}
    return expected


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("case", CASES)
def test_a_directory_and_a_gguf_file_of_one_model_load_equal(case: str, tmp_path: Path) -> None:
    family, changes = CASES[case]
    model = tiny_model(family, **changes)
    model.save_pretrained(tmp_path / "hf")
    write_gguf(model, tmp_path / "model.gguf")
    spec, weights = read(tmp_path / "hf")
    gguf_spec, gguf_weights = read(tmp_path / "model.gguf")
    assert_same(weights, as_quire_names_them(model.state_dict(), spec))
    assert_same(gguf_weights, weights)
    named = {"family": "llama"} if family == "mistral" else {}
    assert gguf_spec == replace(spec, **named)


@pytest.mark.parametrize("case", CASES)
def test_names_and_shapes_are_those_that_were_agreed(case: str, tmp_path: Path) -> None:
    family, changes = CASES[case]
    tiny_model(family, **changes).save_pretrained(tmp_path)
    spec, weights = read(tmp_path)
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == {
        weight.name: weight.shape for weight in weights_of(spec)
    }
    hidden, size = spec.hidden_size, spec.head_dim
    rows = (spec.num_heads + 2 * spec.num_kv_heads) * size
    assert weights["layers.1.attn.qkv.weight"].shape == (rows, hidden)
    assert weights["layers.1.mlp.gate_up.weight"].shape == (2 * spec.intermediate_size, hidden)
    assert ("head.weight" in weights) is not spec.tied_embeddings
    assert all(tensor.is_contiguous() for tensor in weights.values())


def test_a_sharded_checkpoint_loads_like_a_single_file(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    spec, weights = read(tmp_path)
    assert_same(weights, as_quire_names_them(model.state_dict(), spec))


def test_shards_without_an_index_are_read_together(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    (tmp_path / "model.safetensors.index.json").unlink()
    spec, weights = read(tmp_path)
    assert_same(weights, as_quire_names_them(model.state_dict(), spec))


def test_a_checkpoint_of_the_bare_model_needs_no_prefix(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    save_file(
        {name.removeprefix("model."): t for name, t in state.items()},
        tmp_path / "model.safetensors",
    )
    spec, weights = read(tmp_path)
    assert_same(weights, as_quire_names_them(model.state_dict(), spec))


def test_a_tied_matrix_may_be_stored_as_the_head_alone(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    matrix = state.pop("model.embed_tokens.weight")
    save_file({**state, "lm_head.weight": matrix}, tmp_path / "model.safetensors")
    spec, weights = read(tmp_path)
    assert_same(weights, as_quire_names_them(model.state_dict(), spec))
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(CorruptModel, match=r"'model\.embed_tokens\.weight' is missing"):
        read(tmp_path)


@pytest.mark.parametrize("before", ["_orig_mod.", "module.", "base_model.model."])
def test_names_with_a_wrapper_before_them_are_called_so(before: str, tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    save_file({before + name: each for name, each in state.items()}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=f"tensors have '{before}' before their names"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["q_proj.base_layer.weight", "q_proj.lora_A.default.weight"])
def test_a_base_with_an_adapter_inside_is_called_so(name: str, tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    more = {f"model.layers.0.self_attn.{name}": torch.ones(4, 4)}
    save_file(state | more, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"adapter beside its weights.*merge_and_unload"):
        read(tmp_path)


@pytest.mark.parametrize(("end", "tool"), [(".W_q", "HQQ"), (".weight._data", "quanto")])
def test_weights_of_a_tool_that_no_config_names_are_called_so(
    end: str, tool: str, tmp_path: Path
) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    module = "model.layers.0.self_attn.q_proj"
    state[f"{module}{end}"] = state.pop(f"{module}.weight").to(torch.int8)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=f"as {tool} packs it.*Take the same model"):
        read(tmp_path)


def test_a_head_that_is_missing_may_be_that_of_the_embedding(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(CorruptModel, match=r"'lm_head\.weight' is missing; .*tie_word_embeddings"):
        read(tmp_path)


def test_an_index_may_name_tensors_that_nothing_needs(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    norm = index["weight_map"]["model.norm.weight"]
    path.write_text(json.dumps({"weight_map": {**index["weight_map"], "lm_head.weight": norm}}))
    spec, weights = read(tmp_path)
    assert_same(weights, as_quire_names_them(model.state_dict(), spec))


def test_an_index_may_name_files_in_folders_of_the_model_alone(tmp_path: Path) -> None:
    model, directory = tiny_model("llama", tie_word_embeddings=True), tmp_path / "model"
    model.save_pretrained(directory, max_shard_size="60KB")
    path = directory / "model.safetensors.index.json"
    named = json.loads(path.read_text())["weight_map"]
    for file in {*named.values()}:
        (directory / "deep" / "er").mkdir(parents=True, exist_ok=True)
        (directory / file).rename(directory / "deep" / "er" / file)
    below = {key: f"deep/er/{file}" for key, file in named.items()}
    path.write_text(json.dumps({"weight_map": below}))
    spec, weights = read(directory)
    assert_same(weights, as_quire_names_them(model.state_dict(), spec))
    (directory / "deep").rename(tmp_path / "deep")
    (directory / "deep").symlink_to(tmp_path / "deep")
    with pytest.raises(CorruptModel, match="outside of the model; refused"):
        read(directory)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.gguf"])
def test_a_pointer_of_git_lfs_is_called_one(name: str, tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(CorruptModel, match="git lfs pull"):
        read(tmp_path / name if name.endswith(".gguf") else tmp_path)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_checkpoint_is_converted_to_the_dtype_asked_for(
    stored: torch.dtype, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = tiny_model("qwen2").to(stored)
    model.save_pretrained(tmp_path)
    spec, weights = read(tmp_path, dtype)
    assert spec.dtype == str(stored).removeprefix("torch.")
    expected = as_quire_names_them(model.state_dict(), spec)
    assert_same(weights, {name: tensor.to(dtype) for name, tensor in expected.items()})


@pytest.mark.parametrize("quantised", ["Q8_0", "Q4_1", "F16", "BF16"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_quantised_gguf_gives_what_the_gguf_package_gives(
    family: str, quantised: str, tmp_path: Path
) -> None:
    model = tiny_model(family)
    write_gguf(model, tmp_path / "m.gguf", quantised=quantised)
    kind = gguf.GGMLQuantizationType[quantised]
    rounded = {}
    for name, tensor in model.state_dict().items():
        if tensor.dim() == 2:
            # Rows keep their blocks when they are moved, so the order of the two does not matter.
            packed = gguf.quants.quantize(tensor.numpy(), kind)
            tensor = torch.from_numpy(np.array(gguf.quants.dequantize(packed, kind)))
        rounded[name] = tensor
    spec, weights = read(tmp_path / "m.gguf")
    assert_same(weights, as_quire_names_them(rounded, spec))


def test_a_vector_in_blocks_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "m.gguf", quantised="Q8_0", vectors=True)
    with pytest.raises(UnsupportedModel, match=r"norm.weight' is stored as Q8_0; .* vectors in"):
        read(path)


def test_large_tensors_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tiny_model("llama"), tmp_path / "m.gguf", quantised="Q8_0")
    _, whole = read(tmp_path / "m.gguf")
    monkeypatch.setattr(load, "_CPU_READ", 700)
    monkeypatch.setattr(load, "_CPU_PIECE", 256)
    _, pieces = read(tmp_path / "m.gguf")
    assert_same(pieces, whole)


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda state: state.pop(name)


def with_shape(name: str, *shape: int) -> Callable[[dict[str, Any]], None]:
    return lambda state: state.update({name: torch.zeros(shape)})


Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (without(Q), CorruptModel, [Q, "missing"]),
        (without("lm_head.weight"), CorruptModel, ["lm_head.weight", "missing"]),
        (with_shape(Q, 64, 32), CorruptModel, [Q, "(64, 32)", "(64, 64)"]),
        (with_shape("model.norm.weight", 2, 64), CorruptModel, ["(2, 64)", "(64,)"]),
        (
            lambda state: state.update({Q: torch.zeros(64, 64, dtype=torch.int8)}),
            UnsupportedModel,
            [Q, "I8"],
        ),
    ],
)
def test_a_wrong_tensor_is_named_with_both_shapes(
    damage: Callable[[dict[str, Any]], None],
    error: type[Exception],
    words: list[str],
    tmp_path: Path,
) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    damage(state)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(error) as caught:
        read(tmp_path)
    assert all(word in str(caught.value) for word in words), str(caught.value)


UNREAD: dict[str, tuple[int, ...]] = {
    "model.layers.1.self_attn.q_norm.weight": (16,),
    "model.layers.0.self_attn.o_proj.bias": (48,),
    "model.norm.bias": (48,),
    "lm_head.bias": (96,),
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", UNREAD)
def test_a_tensor_of_a_part_that_quire_would_leave_out_is_refused(
    name: str, tied: bool, tmp_path: Path
) -> None:
    tiny_model("llama", tie_word_embeddings=tied).save_pretrained(tmp_path)
    add_tensors(tmp_path, {name: torch.ones(UNREAD[name])})
    with pytest.raises(UnsupportedModel, match=f"no part for {name!r}"):
        read(tmp_path)


def test_tensors_that_a_model_can_do_without_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(checks, "note", notes.append)
    tiny_model("llama").save_pretrained(tmp_path)
    computed = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    add_tensors(tmp_path, {**computed, "model.layers.0.self_attn.o_proj.bias": torch.zeros(48)})
    read(tmp_path)
    assert notes == []
    # A layer behind the last, which guesses ahead, and a head for something else.
    others = {"model.layers.7.extra.weight": torch.ones(8), "v_head.weight": torch.ones(8)}
    add_tensors(tmp_path, others)
    read(tmp_path)
    assert len(notes) == 1
    assert all(name in notes[0] for name in others)


def add_tensors(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    path = directory / "model.safetensors"
    save_file({**load_file(path), **tensors}, path, {"format": "pt"})


def test_a_model_larger_than_memory_is_refused_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    monkeypatch.setattr(checks, "_available", lambda device: 1000)
    with pytest.raises(NotEnoughMemory, match=r"weights take .* GB in float32"):
        read(tmp_path)


def test_config_and_file_that_disagree_are_refused_before_anything_is_allocated(
    tmp_path: Path,
) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 2**31 - 1}))
    with pytest.raises(CorruptModel, match="embed_tokens"):
        read(tmp_path)


def test_dummy_weights_are_random_repeatable_and_scaled() -> None:
    spec = plain_decoder(
        "qwen3", 512, 64, 128, 2, 4, 2, 16, 128, 1e-6, 1e4, qk_norm=True, qkv_bias=True
    )
    weights = dummy_weights(spec, dtype=torch.float32, device="cpu", seed=1)
    again = dummy_weights(spec, dtype=torch.float32, device="cpu", seed=1)
    other = dummy_weights(spec, dtype=torch.float32, device="cpu", seed=2)
    assert_same(again, weights)
    assert not torch.equal(other["embed.weight"], weights["embed.weight"])
    assert weights.keys() == {weight.name for weight in weights_of(spec)}
    assert 0.018 < weights["embed.weight"].std() < 0.022
    assert torch.equal(weights["layers.0.attn.q_norm.weight"], torch.ones(16))
    assert torch.equal(weights["norm.weight"], torch.ones(64))
    assert weights["layers.0.attn.qkv.bias"].abs().sum() > 0


def test_the_default_model_equals_what_the_gguf_package_computes(default_model: Path) -> None:
    _, weights = read(default_model)
    file = GgufFile(default_model)

    def exact(name: str) -> np.ndarray:
        stored = file.tensors[name]
        kind = gguf.GGMLQuantizationType[stored.format.name]
        return gguf.quants.dequantize(file.raw(name), kind).reshape(stored.shape)

    up = weights["layers.17.mlp.gate_up.weight"][1536:].numpy()
    np.testing.assert_array_equal(up, exact("blk.17.ffn_up.weight"))
    keys = weights["layers.29.attn.qkv.weight"][576 : 576 + 192].numpy()
    halves = exact("blk.29.attn_k.weight").reshape(3, 32, 2, 576).swapaxes(1, 2).reshape(192, 576)
    np.testing.assert_array_equal(keys, halves)
    down = weights["layers.0.mlp.down.weight"].numpy()
    np.testing.assert_array_equal(down, exact("blk.0.ffn_down.weight"))


def test_a_gguf_layer_with_a_part_that_quire_lacks_is_refused(tmp_path: Path) -> None:
    """Norms of q and k in a "llama": leaving them out would be another model."""
    norm = {"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}
    files = locate(write_gguf(tiny_model("llama"), tmp_path / "m.gguf", tensors=norm))
    with pytest.raises(UnsupportedModel, match=r"no part for 'blk\.0\.attn_q_norm\.weight'"):
        load_weights(files, files.spec(), dtype=torch.float32, device="cpu")


def test_tensors_under_other_names_are_not_called_missing(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    for layers, error in (("blocks", UnsupportedModel), ("layers", CorruptModel)):
        renamed = {name.replace("layers", layers): tensor for name, tensor in stored.items()}
        renamed.pop("model.layers.1.mlp.up_proj.weight", None)
        save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(error, match="transformers'|is missing"):
            read(tmp_path)


@pytest.mark.parametrize("quantised", ["F32", "Q8_0"])
def test_scales_beside_weights_of_gguf_are_part_of_them(quantised: str, tmp_path: Path) -> None:
    """As files in NVFP4 have them; those of activations are not needed."""
    model = tiny_model("qwen3")
    scales = {f"blk.0.attn_{one}.scale": np.float32([size]) for one, size in (("q", 3), ("k", 0.3))}
    more = scales | {"blk.0.attn_q.input_scale": np.ones(1, np.float32)}
    plain = write_gguf(model, tmp_path / "plain.gguf", quantised=quantised)
    path = write_gguf(model, tmp_path / "m.gguf", quantised=quantised, tensors=more)
    _, expected = read(plain)
    wide = expected["layers.0.attn.qkv.weight"]
    wide[:64] *= 3
    wide[64:96] *= float(np.float32(0.3))
    for dtype in (torch.float32, torch.bfloat16):
        _, found = read(path, dtype)
        for name, weight in expected.items():
            assert torch.equal(found[name], weight.to(dtype)), name


def test_each_expert_of_gguf_has_its_own_scale(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(3, 4, 32)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen3moe")
    writer.add_tensor("blk.0.ffn_up_exps.weight", weights)
    writer.add_tensor("blk.0.ffn_up_exps.scale", np.float32([1, 2, 5]))
    writer.add_tensor("blk.0.ffn_gate_inp.weight", weights[0])
    writer.add_tensor("blk.0.ffn_gate_inp.scale", np.ones(32, np.float32))  # of something else
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    stored = GgufFile(tmp_path / "m.gguf").tensors
    assert "blk.0.ffn_up_exps.scale" not in stored and "blk.0.ffn_gate_inp.scale" in stored
    for expert, scale in enumerate((1, 2, 5)):
        found = read_tensor(of_expert(stored["blk.0.ffn_up_exps.weight"], expert, "it"))
        assert torch.equal(found, torch.from_numpy(weights[expert]) * scale)
