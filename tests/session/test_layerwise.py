"""A model read layer by layer is the model that is built whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quire.session.layerwise import LayerwiseModel
from quire.weights.source import locate
from tests.parity.families_by_kind import BY_KIND
from tests.parity.more_families import random_model
from tests.weights.tiny import tiny_model, write_gguf


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("mistral", {"sliding_window": 9}),
        ("qwen2", {"num_hidden_layers": 1}),
        ("qwen3", {}),
        ("phi3", {"pad_token_id": 0}),
    ],
)
def test_logits_are_those_of_transformers(
    family: str, changes: dict[str, int], tmp_path: Path
) -> None:
    oracle = tiny_model(family, **changes)
    window = {"{arch}.attention.sliding_window": 9} if family == "mistral" else None
    files = locate(write_gguf(oracle, tmp_path / "m.gguf", metadata=window))
    model = LayerwiseModel(files, files.spec())
    texts = [[(7 * i + j) % 96 for i in range(n)] for j, n in enumerate((40, 1, 23, 40))]
    for _ in range(2):  # the second time the head is there already
        for text, hidden in zip(texts, model.hidden(texts), strict=True):
            with torch.no_grad():
                expected = oracle(torch.tensor([text])).logits[0]
            assert torch.allclose(model.logits(hidden), expected, atol=2e-5)


@pytest.mark.parametrize("name", BY_KIND)
def test_layers_may_read_what_others_have_made(name: str, tmp_path: Path) -> None:
    """Keys of layers before them, and embeddings for single layers."""
    oracle = random_model(BY_KIND[name])
    oracle.save_pretrained(tmp_path)
    files = locate(tmp_path)
    texts = [[(7 * i + j) % 96 for i in range(n)] for j, n in enumerate((40, 1, 23, 40))]
    model = LayerwiseModel(files, files.spec())
    for text, hidden in zip(texts, model.hidden(texts), strict=True):
        with torch.no_grad():
            expected = oracle(torch.tensor([text])).logits[0]
        apart = (model.logits(hidden) - expected).abs().max()
        assert apart <= 2e-5 * expected.abs().max()
