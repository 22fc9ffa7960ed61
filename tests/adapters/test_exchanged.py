"""Adapters of a base whose weights were exchanged while it runs: what depends on the base's numbers
is that of the new ones, whenever the adapter was loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire import LLM
from tests.adapters.conftest import TARGETS, Where
from tests.adapters.peft_files import (
    Peft,
    applied,
    exchanged,
    logprobs,
    make_peft,
    named,
    open_llm,
    random_model,
)
from tests.adapters.test_parity import GREEDY, PROMPTS, check
from tests.parity.families import FAMILIES
from tests.parity.more_families import MORE
from tests.test_new_weights import loader, trained

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
BIASES = ("q_proj.bias", "o_proj.bias", "up_proj.bias")


def nothing(model: Any) -> dict[str, Tensor]:
    return {}


@dataclass(frozen=True)
class Asked:
    """An adapter, and the parameters that it makes of a base's before A and B are added."""

    peft: Peft
    own: Callable[[Any], dict[str, Tensor]] = nothing

    @contextmanager
    def on(self, model: Any) -> Iterator[None]:
        with torch.no_grad():
            own = self.own(model)
        with exchanged(model, own), applied(model, self.peft):
            yield


@dataclass(frozen=True)
class Case:
    family: str
    adapters: Callable[[Any], list[Asked]]


def dora(*targets: str, **more: Any) -> Callable[[Any], list[Asked]]:
    return lambda model: [Asked(make_peft(model, targets, use_dora=True, **more))]


def olora(model: Any, *targets: str) -> Asked:
    peft = make_peft(model, targets, seed=5, init_lora_weights="olora")

    def less(base: Any) -> dict[str, Tensor]:
        found = {}
        for name in peft.a:
            weight = base.get_submodule(name).weight
            q, r = torch.linalg.qr(weight)
            found[f"{name}.weight"] = weight - peft.scale(name) * q[:, :4] @ r[:4]
        return found

    return Asked(peft, less)


def with_biases(model: Any) -> Asked:
    peft = make_peft(model, ("q_proj", "o_proj"), bias="all")
    made = torch.Generator().manual_seed(3)
    own = {
        name: torch.randn(parameter.shape, generator=made)
        for name, parameter in model.named_parameters()
        if name.endswith(BIASES)
    }
    peft.more |= own
    return Asked(peft, lambda base: own)


def with_table(model: Any) -> Asked:
    """An embedding, beside which PEFT stored the one that the base had."""
    peft = make_peft(model, ("embed_tokens", "q_proj"))
    before = model.get_input_embeddings().weight.detach().clone()
    peft.more["model.embed_tokens.base_layer.weight"] = before
    return Asked(peft, lambda base: {EMBED: before})


def with_ia3(model: Any) -> Asked:
    """Factors of results, biases included."""
    config = {"peft_type": "IA3", "target_modules": ["q_proj"], "feedforward_modules": []}
    peft, made = Peft({}, {}, config=config), torch.Generator().manual_seed(4)
    factors = {
        name: torch.rand(len(module.weight), 1, generator=made) + 0.5
        for name, module in model.named_modules()
        if name.endswith("q_proj")
    }
    peft.more |= {f"{name}.ia3_l": factor for name, factor in factors.items()}

    def scaled(base: Any) -> dict[str, Tensor]:
        found = {}
        for name, factor in factors.items():
            module = base.get_submodule(name)
            found[f"{name}.weight"] = module.weight * factor
            found[f"{name}.bias"] = module.bias * factor[:, 0]
        return found

    return Asked(peft, scaled)


def every_kind(model: Any) -> list[Asked]:
    return [
        *dora(*TARGETS)(model),
        olora(model, *TARGETS),
        with_table(model),
        with_biases(model),
        with_ia3(model),
        Asked(make_peft(model, TARGETS, seed=7)),
    ]


CASES = {
    "of every kind": Case("llama untied, every bias", every_kind),
    "rows in another order": Case("glm", dora("q_proj", "k_proj", "gate_up_proj")),
}


@pytest.mark.parametrize("case", CASES)
def test_what_depends_on_the_base_is_that_of_its_new_weights(
    case: str, where: Where, tmp_path: Path
) -> None:
    given = CASES[case]
    model = random_model({**FAMILIES, **MORE}[given.family])
    model.save_pretrained(tmp_path / "base")
    adapters = given.adapters(model)
    requests = [named(one.peft.save(tmp_path / str(i)), i + 1) for i, one in enumerate(adapters)]
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}

    def compare(llm: LLM, which: list[int | None]) -> None:
        """All of these in one batch."""
        prompts = [PROMPTS[i % len(PROMPTS)] for i in range(len(which))]
        asked = [None if i is None else requests[i] for i in which]
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False, lora_request=asked)
        for output, prompt, i in zip(outputs, prompts, which, strict=True):
            if i is None:
                check(output, model, prompt, where.within)
                continue
            with adapters[i].on(model):
                check(output, model, prompt, where.within)

    every = [*range(len(adapters)), None]
    with open_llm(tmp_path / "base", **where.options, max_loras=len(adapters)) as llm:
        compare(llm, every[::2])
        loader(llm)(dict(trained(model, 1).named_parameters()))
        compare(llm, every)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(before[name])
        loader(llm)(before)
        compare(llm, every)


def drift(model: Any, peft: Peft, output: Any) -> float:
    """How far the logprobs of an answer are from those of a model with a DoRA adapter."""
    answer = output.outputs[0]
    with applied(model, peft):
        theirs = logprobs(model, [*PROMPTS[0], *answer.token_ids])[len(PROMPTS[0]) - 1 : -1]
    ours = [p[t].logprob for p, t in zip(answer.logprobs, answer.token_ids, strict=True)]
    expected = theirs.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
    return float((torch.tensor(ours) - expected).abs().max())


@pytest.mark.parametrize("options", [{"load_format": "dummy"}, {"quantization": "int8"}], ids=str)
def test_a_base_without_files_and_one_in_8_bits_have_dora_of_what_they_were_given(
    options: dict[str, Any], tmp_path: Path
) -> None:
    model = random_model(FAMILIES["llama untied, every bias"])
    model.save_pretrained(tmp_path / "base")
    [asked] = dora(*TARGETS)(model)
    request = named(asked.peft.save(tmp_path / "a"))
    options = {"dtype": None if "quantization" in options else "float32", **options}
    with open_llm(tmp_path / "base", device="cpu", **options) as llm:
        loader(llm)(dict(trained(model, 1).named_parameters()))
        [output] = llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False, lora_request=request)
    assert drift(model, asked.peft, output) < (1e-4 if "load_format" in options else 0.2)


def test_of_one_new_tensor_only_what_depends_on_it_changes(where: Where, tmp_path: Path) -> None:
    """The others are still read from the files. Waking from a sleep that dropped the weights brings
    those of the files back."""
    model = random_model(FAMILIES["llama untied, every bias"])
    model.save_pretrained(tmp_path / "base")
    [asked] = dora(*TARGETS)(model)
    request = named(asked.peft.save(tmp_path / "a"))
    name = "model.layers.0.self_attn.k_proj.weight"
    weight = model.get_parameter(name)
    before, new = weight.detach().clone(), torch.randn_like(weight)

    with open_llm(tmp_path / "base", **where.options) as llm:
        for there in (new, before):
            if there is new:
                loader(llm)([(name, new)])
            else:
                llm.sleep(level=2)
                llm.wake_up()
            with torch.no_grad():
                weight.copy_(there)
            [output] = llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False, lora_request=request)
            assert drift(model, asked.peft, output) < where.within
