"""Models that Transformers computes on several ranks, by the plan that their class declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, SamplingParams
from quire.errors import InvalidOption, NotSupported
from quire.layers.tp import TensorParallel
from quire.models.fallback.dividing import DryExchange, divide
from quire.models.fallback.trial import plain
from quire.ranks.shares import RankShare
from tests.fallback.judging import OPTIONS, PROMPTS
from tests.fallback.tiny import saved, tiny_model
from tests.ranks.threads import on_ranks

PARAMS = [
    SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1),
    SamplingParams(temperature=0.9, seed=3, max_tokens=8, ignore_eos=True),
]
# With windows and norms of heads; with biases and a feed-forward of two products.
CLASSES: dict[str, dict[str, Any]] = {
    "Exaone4ForCausalLM": {},
    "PhiForCausalLM": {"num_key_value_heads": 4},
}


@pytest.mark.parametrize(
    "architecture",
    ["Exaone4ForCausalLM", pytest.param("PhiForCausalLM", marks=pytest.mark.long)],
)
def test_ranks_draw_what_one_draws(architecture: str, tmp_path: Path) -> None:
    path = saved(tiny_model(architecture, **CLASSES[architecture]), tmp_path)
    found = []
    for size in (1, 2):
        with LLM(path, **OPTIONS, model_impl="transformers", tensor_parallel_size=size) as llm:
            prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
            outputs = [llm.generate(prompts, one, use_tqdm=False) for one in PARAMS]
            found.append([list(one.outputs[0].token_ids) for some in outputs for one in some])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "architecture",
    ["LlamaForCausalLM", "ArceeForCausalLM", "ApertusForCausalLM", "GPTNeoXForCausalLM", *CLASSES],
)
@pytest.mark.parametrize("size", [2, 4])
def test_parts_add_up_to_the_class(architecture: str, size: int) -> None:
    changes = {"num_key_value_heads": 4, "tie_word_embeddings": True}
    text = [(7 * i) % 90 + 3 for i in range(20)]
    with torch.inference_mode():
        whole = plain(tiny_model(architecture, **changes), text)

    @torch.inference_mode()
    def part(tp: TensorParallel) -> torch.Tensor:
        module = parts[tp.share.rank]
        divide(module, tp)
        return plain(module, text)

    parts = [tiny_model(architecture, **changes) for _ in range(size)]  # threads share one seed
    made = on_ranks(size, part)
    assert all(torch.equal(made[0], other) for other in made[1:])
    assert (made[0] - whole).abs().max() < 2e-4 * whole.abs().max()


@pytest.mark.parametrize(
    ("architecture", "size", "error", "words"),
    [
        ("Exaone4ForCausalLM", 4, InvalidOption, "=4 does not divide the 2 KV heads"),
        ("BioGptForCausalLM", 2, NotSupported, "BioGptForCausalLM computes a sequence at a time"),
        ("OPTForCausalLM", 2, NotSupported, "OPTForCausalLM declares no plan"),
        ("Phi3ForCausalLM", 2, NotSupported, "plans .*, a Linear, as 'rowwise_split_input'"),
    ],
)
def test_what_ranks_cannot_compute_is_refused_before_they_start(
    architecture: str, size: int, error: type[Exception], words: str, tmp_path: Path
) -> None:
    path = saved(tiny_model(architecture), tmp_path)
    with pytest.raises(error, match=words):
        LLM(path, **OPTIONS, model_impl="transformers", tensor_parallel_size=size)


def test_rows_that_cannot_be_divided_are_named() -> None:
    module = tiny_model("ArceeForCausalLM", intermediate_size=50)
    with pytest.raises(InvalidOption, match=r"=4 does not divide the 50 rows of .*up_proj"):
        divide(module, TensorParallel(RankShare(1, 4), DryExchange(4)))
