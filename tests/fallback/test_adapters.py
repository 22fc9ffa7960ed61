"""LoRA adapters of models that Transformers computes, against PEFT's arithmetic on its layers."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from quire import LLM
from quire.errors import BatchError, InvalidAdapter, NotSupported, UnsupportedModel
from quire.models.fallback.loaded import products_of
from tests.adapters.peft_files import applied, logprobs, make_peft, named
from tests.adapters.test_parity import GREEDY, PROMPTS, check
from tests.fallback.judging import OPTIONS
from tests.fallback.tiny import saved, tiny_model

FORCED = {**OPTIONS, "model_impl": "transformers"}
ADAPTED = {**FORCED, "enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "fc1", "dense")


@pytest.mark.parametrize("architecture", ["ArceeForCausalLM", "PhiForCausalLM"])
def test_an_adapter_changes_a_class_as_peft_does(architecture: str, tmp_path: Path) -> None:
    """With preempted rows, chunks and cached prefixes, beside rows that have none."""
    model = tiny_model(architecture, num_key_value_heads=4)
    path = saved(model, tmp_path / "base")
    first = make_peft(model, (*TARGETS, "lm_head"))
    second = make_peft(model, TARGETS[:1], seed=2, rank=3, use_rslora=True)
    asked = [named(first.save(tmp_path / "a")), None, named(second.save(tmp_path / "b"), 2)]
    with LLM(path, **ADAPTED) as llm:
        for _ in range(2):
            outputs = llm.generate(PROMPTS, GREEDY, lora_request=asked, use_tqdm=False)
    with applied(model, first):
        check(outputs[0], model, PROMPTS[0])
        strange = logprobs(model, PROMPTS[0])
    assert (strange - logprobs(model, PROMPTS[0])).abs().max() > 0.05, "the adapter does nothing"
    check(outputs[1], model, PROMPTS[1])
    with applied(model, second):
        check(outputs[2], model, PROMPTS[2])


def test_what_adapters_of_a_class_cannot_do_is_refused(tmp_path: Path) -> None:
    model = tiny_model("ArceeForCausalLM")
    path = saved(model, tmp_path / "base")
    dora = make_peft(model, ("q_proj",), use_dora=True).save(tmp_path / "dora")
    table = make_peft(model, ("embed_tokens",)).save(tmp_path / "table")
    with LLM(path, **ADAPTED) as llm:
        with pytest.raises(BatchError, match="DoRA needs the base's own weights"):
            llm.generate(PROMPTS[:1], GREEDY, lora_request=named(dora), use_tqdm=False)
        with pytest.raises(InvalidAdapter, match="embed_tokens is no module"):
            llm.generate(PROMPTS[:1], GREEDY, lora_request=named(table), use_tqdm=False)
    with pytest.raises(NotSupported, match="adapters of models that Transformers computes"):
        LLM(path, **ADAPTED, tensor_parallel_size=2)
    alone = saved(tiny_model("BloomForCausalLM"), tmp_path / "alone")
    with pytest.raises(UnsupportedModel, match="BloomForCausalLM takes no adapters"):
        LLM(alone, **ADAPTED)


def test_experts_of_a_class_have_no_slots() -> None:
    """They get some of the lines of a pass, in another order than its adapters are in."""
    one = nn.ModuleDict({"up": nn.Linear(4, 8), "down": nn.Linear(8, 4)})
    mlp = nn.ModuleDict({"router": nn.Linear(4, 2), "experts": nn.ModuleList([one, one])})
    assert [product.name for product in products_of(mlp)] == ["router"]
