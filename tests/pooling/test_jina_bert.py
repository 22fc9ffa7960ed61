"""The second JinaBERT, which Transformers does not have: held to its layers in plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from quire import PoolingParams
from quire.errors import UnsupportedModel
from tests.pooling.gguf_encoders import SPECIAL, word_pieces, write_gguf
from tests.pooling.tiny import VOCAB, WORDS, open_llm, texts, write_tokenizer

# Six heads, which are no power of two.
HIDDEN, INNER, LAYERS, HEADS, EPS = 48, 40, 3, 6, 1e-5
CONFIG: dict[str, Any] = {
    "architectures": ["JinaBertForMaskedLM"],
    "model_type": "bert",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "layer_norm_eps": EPS,
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
}
PIECES = [*SPECIAL, *WORDS, *(f"[unused{i}]" for i in range(VOCAB - len(SPECIAL) - len(WORDS)))]


def random_state() -> dict[str, Tensor]:
    made, state = torch.Generator().manual_seed(0), {}

    def put(name: str, *shape: int) -> None:
        centre = 1.0 if name.endswith(("norm.weight", "Norm.weight")) else 0.0
        state[name] = centre + 0.2 * torch.randn(shape, generator=made)

    def linear(name: str, rows: int, columns: int, *, bias: bool = True) -> None:
        put(f"{name}.weight", rows, columns)
        if bias:
            put(f"{name}.bias", rows)

    def norm(name: str) -> None:
        put(f"{name}.weight", HIDDEN)
        put(f"{name}.bias", HIDDEN)

    put("embeddings.word_embeddings.weight", VOCAB, HIDDEN)
    put("embeddings.token_type_embeddings.weight", 2, HIDDEN)
    norm("embeddings.LayerNorm")
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        for one in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{one}", HIDDEN, HIDDEN)
        linear(f"{layer}.attention.output.dense", HIDDEN, HIDDEN)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.mlp.gated_layers", 2 * INNER, HIDDEN, bias=False)
        linear(f"{layer}.mlp.wo", HIDDEN, INNER)
        norm(f"{layer}.mlp.layernorm")
    return state


def expected(state: dict[str, Tensor], ids: list[int]) -> Tensor:
    """Its layers, one after the other."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (HIDDEN,), state[f"{name}.weight"], state[f"{name}.bias"], EPS)

    # How fast scores fall, by head, as another model of Transformers has it.
    slopes = build_alibi_tensor(torch.ones(1, 2), HEADS, torch.float32)[:, :, 1]
    at = torch.arange(len(ids))
    falling = -slopes[:, :, None] * (at[:, None] - at).abs()
    x = state["embeddings.word_embeddings.weight"][ids]
    x = norm(x + state["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for i in range(LAYERS):
        name = f"encoder.layer.{i}"
        q, k, v = (
            linear(x, f"{name}.attention.self.{one}").view(len(ids), HEADS, -1).transpose(0, 1)
            for one in ("query", "key", "value")
        )
        scores = q @ k.transpose(1, 2) / (HIDDEN // HEADS) ** 0.5 + falling
        seen = (scores.softmax(-1) @ v).transpose(0, 1).reshape(len(ids), HIDDEN)
        seen = linear(seen, f"{name}.attention.output.dense")
        x = norm(x + seen, f"{name}.attention.output.LayerNorm")
        gate, up = linear(x, f"{name}.mlp.gated_layers").chunk(2, -1)
        x = norm(x + linear(F.gelu(gate) * up, f"{name}.mlp.wo"), f"{name}.mlp.layernorm")
    return x


def written(directory: Path, state: dict[str, Tensor], **config: Any) -> None:
    save_file(state, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps({**CONFIG, **config}))
    write_tokenizer(directory, types=True)


@pytest.mark.parametrize("kind", ["directory", "gguf"])
def test_states_of_every_token_are_those_of_its_layers(kind: str, tmp_path: Path) -> None:
    state = random_state()
    written(tmp_path, state)
    path = tmp_path
    if kind == "gguf":
        sizes = SimpleNamespace(**{**CONFIG, "model_type": "jina_bert"})
        path = write_gguf(tmp_path / "it.gguf", tmp_path, sizes, **word_pieces(PIECES))
    with open_llm(path) as llm:
        plain = PoolingParams(use_activation=False)
        outputs = llm.encode(texts(), plain, pooling_task="token_embed", use_tqdm=False)
    for output in outputs:
        found = output.outputs.data
        wanted = expected(state, list(output.prompt_token_ids))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_layer_of_its_later_kind_is_refused_by_name(tmp_path: Path) -> None:
    """The model for code norms q and k."""
    written(
        tmp_path,
        {
            **random_state(),
            "encoder.layer.0.attention.self.layer_norm_q.weight": torch.ones(HIDDEN),
        },
    )
    with pytest.raises(UnsupportedModel, match="layer_norm_q"):
        open_llm(tmp_path)
    written(tmp_path, random_state(), feed_forward_type="reglu")
    with pytest.raises(UnsupportedModel, match="feed_forward_type 'reglu'"):
        open_llm(tmp_path)
