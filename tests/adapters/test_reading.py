"""Files of adapters: what is read of them, and what is refused by name before any memory goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire import LLM, LoRARequest, NotSupported, SamplingParams
from quire.adapters.names import tensor_name
from quire.errors import AdapterFailed, InvalidAdapter, InvalidRequest
from tests.adapters.conftest import TARGETS, Shelf
from tests.adapters.peft_files import make_peft, named, open_llm

PROMPT = [3, 4, 5, 6]
ONE = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(shelf: Shelf) -> Any:
    with open_llm(shelf.base, max_lora_rank=8) as made:
        yield made


def ask(llm: LLM, path: Path, **more: Any) -> list[int]:
    [output] = llm.generate(PROMPT, ONE, use_tqdm=False, lora_request=named(path), **more)
    return list(output.outputs[0].token_ids)


def change(path: Path, **fields: Any) -> None:
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps({**config, **fields}))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens.*aLoRA"),
        ({"use_qalora": True}, "use_qalora"),
        ({"kasa_config": {"beta": 1e-3}}, "kasa_config"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights.*pissa.*weight_conversion"),
        ({"peft_type": "VERA"}, "peft_type.*VERA.*merge_and_unload"),
        ({"peft_type": "CPT", "num_virtual_tokens": 4}, "peft_type.*CPT.*cannot be merged"),
        ({"lora_alpha": "much"}, "lora_alpha.*'much'"),
        ({"lora_alpha": float("inf")}, "lora_alpha.*inf"),
        ({"use_rslora": 1}, "use_rslora"),
        ({"alpha_pattern": {"(a*)*b": 3}}, "alpha_pattern.*repeats"),
        ({"alpha_pattern": {"(": 3}}, "alpha_pattern.*no pattern"),
        ({"alpha_pattern": {"q_proj": None}}, "alpha_pattern.*q_proj"),
        ({"use_dora": True}, "has no lora_magnitude_vector, and use_dora is true"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_field_that_is_not_built_is_refused_by_name(
    llm: LLM, shelf: Shelf, tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    path = make_peft(shelf.model, ("q_proj",)).save(tmp_path / "a")
    change(path, **fields)
    with pytest.raises(InvalidAdapter, match=rf"adapter_config|adapter_model.*{words}|{words}"):
        ask(llm, path)
    with pytest.raises(InvalidAdapter, match=words):
        ask(llm, path)


def test_an_unknown_field_that_is_set_is_refused(llm: LLM, shelf: Shelf, tmp_path: Path) -> None:
    path = make_peft(shelf.model, ("q_proj",)).save(tmp_path / "a")
    change(path, another_trick=False, a_third=None, bias="all")  # of a base without any
    ask(llm, path)
    change(path, use_new_trick=True)
    with pytest.raises(InvalidAdapter, match="use_new_trick is True.*does not know this field"):
        ask(llm, path)


def rewrite(path: Path, edit: Any) -> None:
    tensors = load_file(path / "adapter_model.safetensors")
    edit(tensors)
    save_file(tensors, path / "adapter_model.safetensors")


Q = "base_model.model.model.layers.0.self_attn.q_proj."


def grow(tensors: dict[str, Any]) -> None:
    tensors[f"{Q}lora_A.weight"] = torch.zeros(4, 64)


def rename(tensors: dict[str, Any]) -> None:
    tensors[f"{Q.replace('q_proj', 'c_attn')}lora_A.weight"] = tensors.pop(f"{Q}lora_A.weight")


def spoil(tensors: dict[str, Any]) -> None:
    tensors[f"{Q}lora_B.weight"][3, 1] = float("nan")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (grow, r"q_proj.lora_A.weight has the shape \[4, 64\].*\[4, 48\]. .*another base"),
        (rename, "c_attn is no module of this model. The nearest is .*another base"),
        (lambda t: t.pop(f"{Q}lora_B.weight"), "q_proj lacks lora_B"),
        (lambda t: t.update({"base_model.model.lm_head.weight": torch.zeros(2)}), "lm_head.weight"),
        (
            lambda t: t.update({f"{Q}bias": torch.ones(2)}),
            "q_proj.bias is there, and bias is 'none'",
        ),
        (lambda t: t.update({f"{Q}lora_A": torch.zeros(4, 48)}), "twice"),
        (lambda t: t.update({f"{Q}lora_embedding_A": torch.zeros(4, 48)}), "lora_embedding_A"),
        (lambda t: t.update({f"{Q}lora_A.weight": torch.zeros(4, 48).to(torch.int8)}), "I8"),
        (lambda t: t.clear(), "holds no tensors"),
    ],
    ids=(
        "shape",
        "name",
        "half",
        "other tensor",
        "bias",
        "twice",
        "misplaced",
        "integers",
        "empty",
    ),
)
def test_tensors_of_another_model_are_refused_by_name(
    llm: LLM, shelf: Shelf, tmp_path: Path, edit: Any, words: str
) -> None:
    path = make_peft(shelf.model, ("q_proj",)).save(tmp_path / "a")
    rewrite(path, edit)
    with pytest.raises(InvalidAdapter, match=words):
        ask(llm, path)


def test_embeddings_of_the_base_beside_an_adapter_change_nothing(
    llm: LLM, shelf: Shelf, tmp_path: Path
) -> None:
    """As PEFT stores them by default; the base's head is its embedding."""
    path = make_peft(shelf.model, ("embed_tokens", "lm_head")).save(tmp_path / "a")
    before, start = ask(llm, path), "base_model.model."
    table = shelf.model.get_input_embeddings().weight.detach()
    for name in ("model.embed_tokens", "lm_head"):
        copy = {f"{start}{name}.base_layer.weight": table.to(torch.bfloat16)}
        rewrite(path, lambda tensors, copy=copy: tensors.update(copy))
        assert ask(llm, path) == before
    norm = {f"{start}model.norm.weight": torch.ones(48)}
    rewrite(path, lambda tensors: tensors.update(norm))
    with pytest.raises(InvalidAdapter, match=r"norm\.weight is no matrix of a LoRA adapter"):
        ask(llm, path)


def test_a_rank_above_the_limit_is_refused_with_the_way_out(
    llm: LLM, shelf: Shelf, tmp_path: Path
) -> None:
    path = make_peft(shelf.model, ("q_proj",), rank=9).save(tmp_path / "a")
    with pytest.raises(InvalidAdapter, match="rank 9, and max_lora_rank is 8. Set max_lora_rank=9"):
        ask(llm, path)


def test_a_pickle_a_file_and_nothing_are_refused(llm: LLM, shelf: Shelf, tmp_path: Path) -> None:
    path = make_peft(shelf.model, ("q_proj",)).save(tmp_path / "a")
    (path / "adapter_model.safetensors").rename(path / "adapter_model.bin")
    with pytest.raises(InvalidAdapter, match=r"adapter_model.bin, a pickle.*safe_serialization"):
        ask(llm, path)
    for given, words in (
        (path / "adapter_config.json", "holds no adapter_config.json"),
        (tmp_path, "holds no adapter_config.json"),
        (tmp_path / "nowhere", "is no directory here"),
    ):
        with pytest.raises(InvalidAdapter, match=words):
            ask(llm, given)
    with pytest.raises(InvalidAdapter, match="lora_path is empty"):
        llm.generate(PROMPT, ONE, lora_request=LoRARequest("a", 1))


def test_numbers_that_are_none_end_their_own_row(llm: LLM, shelf: Shelf, tmp_path: Path) -> None:
    path = make_peft(shelf.model, ("q_proj",)).save(tmp_path / "a")
    rewrite(path, spoil)
    bad, good = llm.generate(
        [PROMPT, PROMPT],
        ONE,
        use_tqdm=False,
        on_error="return",
        lora_request=[named(path), shelf.requests[0]],
    )
    assert isinstance(bad.error, AdapterFailed) and "lora_B.weight holds numbers" in str(bad.error)
    assert good.error is None and len(good.outputs[0].token_ids) == 3


def test_a_bad_adapter_refuses_its_own_prompt(llm: LLM, shelf: Shelf, tmp_path: Path) -> None:
    asked = [named(tmp_path / "nowhere"), None]
    bad, good = llm.generate(
        [PROMPT, PROMPT], ONE, use_tqdm=False, on_error="return", lora_request=asked
    )
    assert isinstance(bad.error, InvalidAdapter) and bad.error.index == 0
    assert good.error is None


def test_an_adapter_that_changed_on_disk_is_another(llm: LLM, shelf: Shelf, tmp_path: Path) -> None:
    first = make_peft(shelf.model, TARGETS, seed=7).save(tmp_path / "a")
    before = ask(llm, first)
    assert ask(llm, first) == before
    make_peft(shelf.model, TARGETS, seed=8).save(first)
    after = ask(llm, first)
    assert after != before
    assert after == ask(llm, make_peft(shelf.model, TARGETS, seed=8).save(tmp_path / "b"))


@pytest.mark.parametrize("prefix", ["base_model.model.", "base_model.model.language_model.", ""])
def test_names_are_found_behind_what_stands_before_them(
    llm: LLM, shelf: Shelf, tmp_path: Path, prefix: str
) -> None:
    peft = make_peft(shelf.model, ("q_proj", "v_proj"), seed=4)
    usual = ask(llm, peft.save(tmp_path / "usual"))
    assert ask(llm, peft.save(tmp_path / "other", prefix)) == usual


def test_names_of_tensors() -> None:
    found = tensor_name("base_model.model.model.language_model.layers.3.mlp.up_proj.lora_A.weight")
    assert found is not None
    assert (found.own, found.kind) == ("model.layers.3.mlp.up_proj", "A")
    copy = tensor_name("base_model.model.model.embed_tokens.base_layer.weight")
    assert copy is not None and (copy.own, copy.kind) == ("model.embed_tokens", "weight")
    bias = tensor_name("base_model.model.model.layers.3.mlp.up_proj.base_layer.bias")
    assert bias is not None and (bias.own, bias.kind) == ("model.layers.3.mlp.up_proj", "bias")
    added = tensor_name("base_model.model.lm_head.lora_B.bias")
    assert added is not None and (added.own, added.kind) == ("lm_head", "added_bias")
    assert tensor_name("base_model.model.lm_head.vera_lambda_d") is None
    magnitude = tensor_name("base_model.model.lm_head.lora_magnitude_vector.weight")
    assert magnitude is not None and magnitude.kind == "magnitude"


def test_what_is_asked_for_is_checked(llm: LLM, shelf: Shelf) -> None:
    one = shelf.requests[0]
    for given, words in (
        ([one], "1 entries for 2 prompts"),
        ("adapter", "is a str"),
        (["adapter", None], "is a str"),
        (object(), "is a object"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            llm.generate([PROMPT, PROMPT], ONE, use_tqdm=False, lora_request=given)
    with pytest.raises(InvalidRequest, match="NUL"):
        llm.generate({"prompt_token_ids": PROMPT, "cache_salt": "\0a"}, ONE)
    for field in ({"tensorizer_config_dict": {"a": 1}}, {"is_3d_lora_weight": True}):
        with pytest.raises(NotSupported, match=next(iter(field))):
            LoRARequest("a", 1, "p", **field)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="lora_name"):
        LoRARequest("a\0b", 1, "p")


def test_without_enable_lora_nothing_is_in_the_way(shelf: Shelf) -> None:
    from quire.layers.adapted import AdaptedLinear

    with open_llm(shelf.base, enable_lora=False) as llm:
        with pytest.raises(NotSupported, match="enable_lora=True"):
            llm.generate(PROMPT, ONE, lora_request=shelf.requests[0])
        model: Any = llm._session.model.executor
        products = [layer.attention.qkv.multiply for layer in model._model.layers]
        assert not any(isinstance(one, AdaptedLinear) for one in products)
        assert llm.generate(PROMPT, ONE, use_tqdm=False, lora_request=[None])[0].error is None
    with pytest.raises(InvalidRequest, match="max_cpu_loras.*at least max_loras"):
        open_llm(shelf.base, max_loras=3, max_cpu_loras=2)
