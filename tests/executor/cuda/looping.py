"""A model that mostly goes round in a loop: guesses are right there, until a draw leaves it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quire.spec import ModelSpec
from quire.weights.load import dummy_weights
from tests.executor.cuda.test_runner import SPEC

LOOP = 9  # tokens of a loop
LOOPING = replace(SPEC, tied_embeddings=False)


def looping_weights(
    spec: ModelSpec = LOOPING, dtype: torch.dtype = torch.float32, strength: float = 1.0
) -> dict[str, Tensor]:
    """After token t mostly comes the next one of its loop; what layers add changes logits, and now
    and then the token: the wider the model, the more `strength` embeddings need beside it."""
    made = {
        name: w * 5 if w.dim() == 2 else w
        for name, w in dummy_weights(spec, dtype=torch.float32, device="cpu").items()
    }
    generator = torch.Generator().manual_seed(5)
    table = torch.randn(spec.vocab_size, spec.hidden_size, generator=generator)
    token = torch.arange(spec.vocab_size)
    following = torch.where(token % LOOP == LOOP - 1, token - LOOP + 1, token + 1)
    following.clamp_(max=spec.vocab_size - 1)
    made["embed.weight"] = table * strength
    made["head.weight"] = torch.zeros_like(table)
    made["head.weight"][following] = table / 8
    return {name: w.to(dtype) for name, w in made.items()}
