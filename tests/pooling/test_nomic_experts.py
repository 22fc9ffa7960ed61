"""NomicBERT with experts, which Transformers does not have: held to its layers in plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from quire import PoolingParams
from quire.errors import UnsupportedModel
from tests.pooling.tiny import VOCAB, open_llm, similarity, texts, write_tokenizer

HIDDEN, INNER, LAYERS, HEADS, EXPERTS, CHOSEN, EPS, BASE = 48, 20, 4, 4, 5, 2, 1e-5, 77.0
CONFIG: dict[str, Any] = {
    "architectures": ["NomicBertModel"],
    "model_type": "nomic_bert",
    "vocab_size": VOCAB,
    "n_embd": HIDDEN,
    "n_inner": INNER,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_positions": 64,
    "type_vocab_size": 1,
    "layer_norm_epsilon": EPS,
    "rotary_emb_base": BASE,
    "activation_function": "gelu",
    "moe_every_n_layers": 2,
    "num_experts": EXPERTS,
    "moe_top_k": CHOSEN,
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True),
    **dict.fromkeys(("prenorm", "causal", "moe_normalize_expert_weights"), False),
}


def random_state() -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCAB, HIDDEN),
        "embeddings.token_type_embeddings.weight": (1, HIDDEN),
        **_both("emb_ln", HIDDEN),
    }
    for i in range(LAYERS):
        layer = f"encoder.layers.{i}"
        shapes |= _both(f"{layer}.attn.Wqkv", 3 * HIDDEN, HIDDEN)
        shapes |= _both(f"{layer}.attn.out_proj", HIDDEN, HIDDEN)
        shapes |= _both(f"{layer}.norm1", HIDDEN) | _both(f"{layer}.norm2", HIDDEN)
        if i % 2 == 1:
            shapes[f"{layer}.mlp.router.layer.weight"] = (EXPERTS, HIDDEN)
            shapes[f"{layer}.mlp.experts.mlp.w1"] = (EXPERTS * INNER, HIDDEN)
            shapes[f"{layer}.mlp.experts.mlp.w2"] = (EXPERTS * INNER, HIDDEN)
            shapes[f"{layer}.mlp.experts.bias"] = (HIDDEN,)
        else:
            shapes |= _both(f"{layer}.mlp.fc1", INNER, HIDDEN)
            shapes |= _both(f"{layer}.mlp.fc2", HIDDEN, INNER)
    made = torch.Generator().manual_seed(0)
    return {name: 0.25 * torch.randn(shape, generator=made) for name, shape in shapes.items()}


def _both(name: str, rows: int, *columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, *columns), f"{name}.bias": (rows,)}


def expected(state: dict[str, Tensor], ids: list[int]) -> Tensor:
    """Its layers, one after the other; every expert is given every token, and counts for nothing
    where it was not chosen."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (HIDDEN,), state[f"{name}.weight"], state[f"{name}.bias"], EPS)

    def turned(x: Tensor) -> Tensor:  # [tokens, heads, D], as complex numbers
        half = x.shape[-1] // 2
        angles = torch.arange(len(ids))[:, None] * BASE ** -(torch.arange(half) / half)
        pairs = torch.complex(x[..., :half], x[..., half:])
        pairs = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat([pairs.real, pairs.imag], -1)

    x = state["embeddings.word_embeddings.weight"][ids]
    x = norm(x + state["embeddings.token_type_embeddings.weight"][0], "emb_ln")
    for i in range(LAYERS):
        name = f"encoder.layers.{i}"
        q, k, v = linear(x, f"{name}.attn.Wqkv").view(len(ids), 3, HEADS, -1).unbind(1)
        scores = torch.einsum("qhd,khd->hqk", turned(q), turned(k)) / (HIDDEN // HEADS) ** 0.5
        seen = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(len(ids), HIDDEN)
        x = norm(x + linear(seen, f"{name}.attn.out_proj"), f"{name}.norm1")
        if i % 2 == 0:
            made = linear(F.gelu(linear(x, f"{name}.mlp.fc1")), f"{name}.mlp.fc2")
        else:
            w1, w2 = (
                state[f"{name}.mlp.experts.mlp.{one}"].view(EXPERTS, INNER, HIDDEN)
                for one in ("w1", "w2")
            )
            likely = (x @ state[f"{name}.mlp.router.layer.weight"].T).softmax(-1)
            least = likely.sort(-1, descending=True).values[:, CHOSEN - 1 : CHOSEN]
            worth = torch.where(likely >= least, likely, 0)  # and they are not made to sum to 1
            inner = F.gelu(torch.einsum("th,eih->tei", x, w1))
            made = torch.einsum("te,tei,eih->th", worth, inner, w2)
            made = made + state[f"{name}.mlp.experts.bias"]
        x = norm(x + made, f"{name}.norm2")
    return x


def written(directory: Path, state: dict[str, Tensor], **config: Any) -> None:
    save_file(state, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps({**CONFIG, **config}))
    write_tokenizer(directory)


def test_states_of_every_token_are_those_of_its_layers(tmp_path: Path) -> None:
    state = random_state()
    written(tmp_path, state)
    plain = PoolingParams(use_activation=False)
    with open_llm(tmp_path) as llm:
        outputs = llm.encode(texts(), plain, pooling_task="token_embed", use_tqdm=False)
        [alone] = llm.encode(texts()[3], plain, pooling_task="token_embed", use_tqdm=False)
    for output in outputs:
        wanted = expected(state, list(output.prompt_token_ids))
        found = output.outputs.data
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert np.array_equal(alone.outputs.data, outputs[3].outputs.data)


def test_experts_in_8_bits_stay_close(tmp_path: Path) -> None:
    state = random_state()
    written(tmp_path, state)
    with open_llm(tmp_path, quantization="int8", dtype=None) as llm:
        outputs = llm.embed(texts(), use_tqdm=False)
    for output in outputs:
        wanted = expected(state, list(output.prompt_token_ids))[0]
        assert similarity(output.outputs.embedding, wanted) > 0.99


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"moe_normalize_expert_weights": True}, "moe_normalize_expert_weights 'True'"),
        ({"num_shared_experts": 1}, "num_shared_experts '1'"),
        ({"activation_function": "swiglu"}, "activation_function must be gelu"),
        ({"mlp_fc1_bias": False}, "mlp_fc1_bias must be true"),
    ],
)
def test_what_would_be_another_model_is_refused(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    written(tmp_path, random_state(), **change)
    with pytest.raises(UnsupportedModel, match=words):
        open_llm(tmp_path)
