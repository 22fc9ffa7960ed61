"""Adapters that have more than A and B: modules of their own, rows of tokens, and biases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire import LLM
from quire.adapters.plan import plan_adapter
from quire.adapters.sites import sites_of
from quire.errors import BatchError, InvalidAdapter
from tests.adapters.conftest import TARGETS, Shelf, Where
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
from tests.parity.later_families import LATER
from tests.parity.more_families import MORE
from tests.ranks.test_shares import CONFIGS, spec_of

TOKENS = "token_adapter.trainable_tokens_delta"
LAYER = "model.layers.0.self_attn"
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Case:
    """A family, what is low-rank of an adapter, and the base's parameters that are its own."""

    family: str
    targets: Sequence[str]
    ends: tuple[str, ...]
    fields: dict[str, Any]


CASES = {
    "head and embedding of one matrix": Case(
        "qwen3", TARGETS, (EMBED, HEAD), {"modules_to_save": ["embed_tokens", "lm_head"]}
    ),
    "an embedding, and the head that was one with it": Case(
        "qwen3", ("q_proj",), (EMBED,), {"modules_to_save": ["embed_tokens"]}
    ),
    "an embedding that is scaled, norms whose weights are less one": Case(
        "gemma3",
        ("q_proj",),
        (EMBED, "input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight"),
        {"modules_to_save": ["embed_tokens", "norm", "layernorm"]},
    ),
    "parts of a fused product with their biases": Case(
        "llama untied, every bias",
        ("q_proj", "up_proj"),
        ("k_proj.weight", "k_proj.bias", "o_proj.weight", "o_proj.bias", HEAD),
        {"modules_to_save": ["k_proj", "o_proj", "lm_head"]},
    ),
    "norms of heads, whose rows are in another order": Case(
        "qwen3",
        ("q_proj",),
        ("q_norm.weight", "k_norm.weight"),
        {"modules_to_save": ["q_norm", "k_norm"]},
    ),
    "norms over all heads": Case(
        "olmo2", ("q_proj",), ("q_norm.weight",), {"modules_to_save": ["q_norm"]}
    ),
    "norms of heads less one": Case(
        "gemma3", ("q_proj",), ("k_norm.weight",), {"modules_to_save": ["k_norm"]}
    ),
    "every bias": Case("gpt2", ("c_attn",), (".bias",), {"bias": "all"}),
    "a weight that is stored [in, out]": Case(
        "gpt2", ("c_attn",), ("c_fc.weight", "c_fc.bias"), {"modules_to_save": ["c_fc"]}
    ),
    "biases of heads in one module, beside dora": Case(
        "gpt neox",
        ("query_key_value", "dense"),
        ("query_key_value.bias", "dense.bias"),
        {"bias": "lora_only", "use_dora": True},
    ),
}


def own_numbers(model: Any, ends: tuple[str, ...]) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(3)
    found = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name.endswith(ends):
            noise = torch.randn(parameter.shape, generator=made)
            found[name] = parameter.detach() + 0.2 * noise
    assert found
    return found


def compare(
    where: Where, base: Path, model: Any, peft: Peft, own: dict[str, Tensor], **options: Any
) -> None:
    """A batch of it, of a plain adapter and of none against Transformers with those parameters."""
    plain = make_peft(model, peft.config["target_modules"][:1], seed=2, rank=3)
    folder = base.parent
    asked = [named(peft.save(folder / "own")), None, named(plain.save(folder / "plain"), 2)]
    with open_llm(base, **where.options, **options) as llm:
        for turn in (asked, asked[::-1], asked):  # the slots are used by another in between
            outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=turn)
            for output, prompt, request in zip(outputs, PROMPTS, turn, strict=True):
                if request is None:
                    check(output, model, prompt, where.within)
                elif request.lora_name == "plain":
                    with applied(model, plain):
                        check(output, model, prompt, where.within)
                else:
                    with exchanged(model, own), applied(model, peft):
                        check(output, model, prompt, where.within)
                        strange = logprobs(model, prompt)
                    assert (strange - logprobs(model, prompt)).abs().max() > 0.05


@pytest.mark.parametrize("case", CASES)
def test_numbers_of_an_adapters_own_stand_in_place_of_the_bases(
    case: str, where: Where, tmp_path: Path
) -> None:
    given = CASES[case]
    model = random_model({**FAMILIES, **MORE}[given.family])
    model.save_pretrained(tmp_path / "base")
    peft = make_peft(model, given.targets, **given.fields)
    own = own_numbers(model, given.ends)
    targeted = tuple(peft.a)
    for name, tensor in own.items():
        module, _, kind = name.rpartition(".")
        inside = ".base_layer" if module in targeted else ""
        peft.more[f"{module}{inside}.{kind}"] = tensor
    compare(where, tmp_path / "base", model, peft, own, max_loras=2)


def test_a_tied_pair_is_stored_twice_where_one_half_is_named(where: Where, tmp_path: Path) -> None:
    """As PEFT 0.21 writes it for ensure_weight_tying: modules_to_save names the embedding alone."""
    model = random_model(FAMILIES["qwen3"])
    model.save_pretrained(tmp_path / "base")
    named = ["embed_tokens", "model.embed_tokens"]
    peft = make_peft(model, ("q_proj",), modules_to_save=named, ensure_weight_tying=True)
    table = own_numbers(model, (EMBED,))[EMBED]
    own = {EMBED: table, HEAD: table.clone()}
    peft.more = own
    compare(where, tmp_path / "base", model, peft, own, max_loras=2)


def test_a_bias_beside_b_is_added_by_its_scale(where: Where, tmp_path: Path) -> None:
    model = random_model(FAMILIES["phi3, partial longrope"])
    model.save_pretrained(tmp_path / "base")
    peft = make_peft(model, ("qkv_proj", "o_proj"), lora_bias=True)
    own = {}
    for seed, (module, b) in enumerate(peft.b.items()):
        bias = torch.randn(len(b), generator=torch.Generator().manual_seed(seed))
        peft.more[f"{module}.lora_B.bias"] = bias
        own[f"{module}.bias"] = bias * peft.scale(module)  # the base has none
    compare(where, tmp_path / "base", model, peft, own)


@pytest.mark.parametrize(
    ("family", "by_module", "stored"),
    [
        ("qwen3", [3, 9, 5], {"model.embed_tokens": [3, 9, 5]}),
        ("qwen3", {"embed_tokens": [9], "lm_head": [9]}, {"model.embed_tokens": [9]}),
        ("qwen3", {"embed_tokens": [9], "lm_head": [5, 4]}, None),
        ("qwen3 untied", {"embed_tokens": [9, 3]}, None),
        ("gemma3", [3, 9, 5], {"model.embed_tokens": [3, 9, 5]}),
    ],
    ids=("tied", "tied, said twice", "tied, other tokens", "untied", "scaled"),
)
def test_rows_of_tokens_stand_in_place_of_the_bases(
    family: str, by_module: Any, stored: Any, where: Where, tmp_path: Path
) -> None:
    model = random_model({**FAMILIES, **MORE}[family])
    model.save_pretrained(tmp_path / "base")
    peft = make_peft(model, ("q_proj", "v_proj"), trainable_token_indices=by_module)
    names = {"embed_tokens": "model.embed_tokens", "lm_head": "lm_head"}
    stored = stored or {names[end]: some for end, some in by_module.items()}
    own = {}
    for seed, (module, tokens) in enumerate(stored.items()):
        table = model.get_submodule(module).weight.detach().clone()
        rows = torch.randn(
            len(tokens), table.shape[1], generator=torch.Generator().manual_seed(seed)
        )
        table[tokens] = rows
        peft.more[f"{module}.{TOKENS}"] = rows
        own[f"{module}.weight"] = table
    if "lm_head" not in stored and model.config.tie_word_embeddings:
        own[HEAD] = own[EMBED]
    compare(where, tmp_path / "base", model, peft, own)


def test_an_embedding_beside_an_adapter_that_is_not_the_bases_is_taken(
    shelf: Shelf, where: Where, tmp_path: Path
) -> None:
    """PEFT writes it over the base's, which here is the head, too."""
    peft = make_peft(shelf.model, ("embed_tokens", "q_proj"))
    own = own_numbers(shelf.model, (EMBED,))
    peft.more["model.embed_tokens.base_layer.weight"] = own[EMBED]
    model = random_model(FAMILIES["qwen3"])
    model.save_pretrained(tmp_path / "base")
    compare(where, tmp_path / "base", model, peft, {EMBED: own[EMBED], HEAD: own[EMBED]})


@pytest.fixture(scope="module")
def llm(shelf: Shelf) -> Any:
    with open_llm(shelf.base) as made:
        yield made


def refused(llm: LLM, peft: Peft, path: Path) -> str:
    with pytest.raises((InvalidAdapter, BatchError)) as found:
        llm.generate(PROMPTS[0], GREEDY, use_tqdm=False, lora_request=named(peft.save(path)))
    return str(found.value)


@pytest.mark.parametrize(
    ("fields", "more", "words"),
    [
        ({"modules_to_save": ["lm_head"]}, {HEAD: (99, 48)}, "has 99 rows.*vocabulary is 96.*resi"),
        ({}, {EMBED: (99, 48)}, "has 99 rows, and the model's vocabulary is 96"),
        ({"modules_to_save": ["lm_head"]}, {}, "lm_head is in modules_to_save.*nothing of it"),
        (
            {"modules_to_save": ["q_norm"]},
            {f"{LAYER}.q_norm.weight": (16,)},
            "layers.1.self_attn.q_norm is in modules_to_save.*nothing of it",
        ),
        (
            {"modules_to_save": ["score"], "task_type": "SEQ_CLS"},
            {"score.weight": (2, 48)},
            "score is a classifier's head, which adapters do not bring.*merge_and_unload",
        ),
        ({}, {"model.norm.weight": (48,)}, "norm.weight is no matrix.*modules_to_save has no such"),
        ({"bias": "all"}, {f"{LAYER}.o_proj.bias": (48,)}, "model has not"),
        ({}, {f"{LAYER}.o_proj.bias": (48,)}, "bias is 'none'"),
        ({}, {f"{LAYER}.o_proj.lora_B.bias": (48,)}, "beside no lora_A"),
        ({"trainable_token_indices": [3]}, {f"model.embed_tokens.{TOKENS}": (2, 48)}, "shape"),
        ({"trainable_token_indices": [96]}, {f"model.embed_tokens.{TOKENS}": (1, 48)}, "token 96"),
        ({"trainable_token_indices": [3, 3]}, {}, "twice"),
        ({"trainable_token_indices": ["a"]}, {}, "list of token ids"),
        ({"modules_to_save": "lm_head"}, {}, "list of names"),
        (
            {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
            {EMBED: (96, 48)},
            "ensure_weight_tying is true.*embed alone",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else None,
)
def test_what_does_not_fit_is_refused_by_name(
    llm: LLM,
    shelf: Shelf,
    tmp_path: Path,
    fields: dict[str, Any],
    more: dict[str, tuple[int, ...]],
    words: str,
) -> None:
    peft = make_peft(shelf.model, ("q_proj",), **fields)
    peft.more = {name: torch.ones(shape) for name, shape in more.items()}
    assert re.search(words, refused(llm, peft, tmp_path / "a"))


def test_numbers_that_are_none_are_refused(llm: LLM, shelf: Shelf, tmp_path: Path) -> None:
    peft = make_peft(shelf.model, ("q_proj",), modules_to_save=["lm_head"])
    peft.more = {HEAD: torch.full((96, 48), float("nan"))}
    assert "not finite" in refused(llm, peft, tmp_path / "a")


def test_experts_on_a_gpu_take_a_and_b_alone(tmp_path: Path) -> None:
    model = random_model(MORE["qwen2 moe"])
    module = "model.layers.0.mlp.experts.1.down_proj"
    peft = make_peft(model, ("q_proj",), modules_to_save=[module])
    spec = spec_of(CONFIGS["qwen2 moe"])
    (found,) = (one for one in sites_of(spec).parts[module])
    peft.more = {f"{module}.weight": torch.ones(found.rows, found.columns)}
    path = peft.save(tmp_path / "a")
    assert plan_adapter(path, sites_of(spec), 16).own
    with pytest.raises(InvalidAdapter, match="more for an expert than A and B.*GPU.*device='cpu'"):
        plan_adapter(path, sites_of(spec, experts_add_only=True), 16)


def test_norms_behind_the_rotation_of_heads_stay_as_they_are(tmp_path: Path) -> None:
    model, norm = random_model(LATER["hunyuan dense"]), f"{LAYER}.query_layernorm.weight"
    peft = make_peft(model, ("q_proj",), modules_to_save=["query_layernorm"])
    peft.more = {norm: torch.ones(16)}
    path, sites = peft.save(tmp_path / "a"), sites_of(spec_of(CONFIGS["hunyuan dense"]))
    with pytest.raises(InvalidAdapter, match="query_layernorm"):
        plan_adapter(path, sites, 16)
