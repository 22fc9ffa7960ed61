"""A model that Transformers computes, with all that an LLM does, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from quire import LLM, BeamSearchParams, ModelRegistry, SamplingParams, StructuredOutputsParams
from quire.errors import CorruptModel, InvalidOption, NotSupported, UnsupportedModel
from quire.families.registry import BY_ARCHITECTURE
from quire.models.fallback import kept_states, registered
from quire.models.fallback.recording import NOT_A_WINDOW, window_of
from tests.fallback.judging import OPTIONS, PROMPTS, generated, judged, way_of, wrong
from tests.fallback.tiny import saved, tiny_model

FORCED = {**OPTIONS, "model_impl": "transformers"}
TEXTS = ["The sea is", "One, two, three,", "The sea is wide and"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A family of quire's own, behind the default model's tokenizer."""
    model = tiny_model("LlamaForCausalLM", vocab_size=49152, tie_word_embeddings=True)
    return saved(model, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def both(directory: str) -> Iterator[dict[str, LLM]]:
    options: dict[str, Any] = {"tokenizer": "smollm2", "dtype": "float32", "device": "cpu"}
    options |= {"max_model_len": 128, "kv_cache_memory_bytes": 4 << 20}
    made = {impl: LLM(directory, model_impl=impl, **options) for impl in ("quire", "transformers")}
    yield made
    for llm in made.values():
        llm.close()


def ids(outputs: list[Any]) -> list[list[list[int]]]:
    return [[list(one.token_ids) for one in output.outputs] for output in outputs]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
        SamplingParams(temperature=0.8, top_p=0.9, seed=7, n=3, max_tokens=8, ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=8, repetition_penalty=1.3, bad_words=[" a"]),
        SamplingParams(
            temperature=0,
            max_tokens=12,
            structured_outputs=StructuredOutputsParams(regex="[0-9]{3}-[a-z]{2}"),
        ),
    ],
    ids=["greedy", "sampled", "edited", "structured"],
)
def test_it_draws_what_the_native_family_draws(both: dict[str, LLM], params: Any) -> None:
    native, fallback = (ids(llm.generate(TEXTS, params, use_tqdm=False)) for llm in both.values())
    assert fallback == native


def test_ways_are_what_was_asked_for(both: dict[str, LLM]) -> None:
    assert [way_of(llm) for llm in both.values()] == ["native", "fallback"]


def test_beams_and_scores_are_those_of_the_native_family(both: dict[str, LLM]) -> None:
    beams = [
        llm.beam_search([{"prompt": TEXTS[0]}], BeamSearchParams(beam_width=3, max_tokens=6))
        for llm in both.values()
    ]
    native, fallback = ([list(b.tokens) for b in one[0].sequences] for one in beams)
    assert fallback == native
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2)
    scores, others = (
        [
            {token: found.logprob for token, found in step.items()}
            for step in llm.generate(TEXTS[1], params, use_tqdm=False)[0].prompt_logprobs[1:]
        ]
        for llm in both.values()
    )
    assert all(pytest.approx(a, abs=1e-3) == b for a, b in zip(scores, others, strict=True))


def test_it_wakes_up_with_the_same_weights(both: dict[str, LLM]) -> None:
    llm, params = both["transformers"], SamplingParams(temperature=0, max_tokens=6)
    before = ids(llm.generate(TEXTS, params, use_tqdm=False))
    for level in (1, 2):
        llm.sleep(level=level)
        llm.wake_up()
        assert ids(llm.generate(TEXTS, params, use_tqdm=False)) == before


def test_generate_of_transformers_writes_the_same(tmp_path: Path) -> None:
    model = tiny_model("CohereForCausalLM")
    llm = LLM(saved(model, tmp_path), **FORCED)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert ids(outputs) == [[generated(model, prompt)] for prompt in PROMPTS]
    llm.close()


LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [3.0, 4.0, 5.0, 6.0],
    "short_mscale": 1.2,
    "long_mscale": 1.3,
}


@pytest.mark.parametrize(
    ("architecture", "change"),
    [
        ("OPTForCausalLM", {"word_embed_proj_dim": 16}),
        ("StableLmForCausalLM", {"qk_layernorm": True}),
        ("GPT2LMHeadModel", {"n_embd": 36}),  # odd heads
    ],
)
def test_what_no_family_computes_transformers_does(
    architecture: str, change: dict[str, Any], tmp_path: Path
) -> None:
    found = judged(tiny_model(architecture, **change), tmp_path)
    assert (found.how, found.wrong) == ("fallback", "")


def test_a_class_that_asks_meta_tensors_for_values(tmp_path: Path) -> None:
    model = tiny_model("PhimoeForCausalLM", rope_parameters=LONG)
    found = judged(model, tmp_path, model_impl="transformers")
    assert (found.how, found.wrong) == ("fallback", "")


def test_texts_that_are_longer_than_a_chunk_are_computed_by_transformers(tmp_path: Path) -> None:
    """Where blocks do not divide chunks."""
    model = tiny_model("Llama4ForCausalLM", attention_chunk_size=16)
    found = judged(model, tmp_path, block_size=32)  # texts of up to 41 tokens
    assert (found.how, found.wrong) == ("fallback, one by one", "")


def test_alibi_of_falcon_is_added_once(tmp_path: Path) -> None:
    """As by the attention that Transformers takes by itself: the eager one adds it twice."""
    model = tiny_model("FalconForCausalLM", seed=3, alibi=True)
    path, text = saved(model, tmp_path), PROMPTS[3]
    with torch.no_grad():
        wanted, eager = (
            type(model).from_pretrained(path, attn_implementation=name)(torch.tensor([text])).logits
            for name in ("sdpa", "eager")
        )
    assert (wanted - eager).abs().max() > 0.1, "both are the same: take eager for all classes"
    with LLM(path, **OPTIONS) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        [output] = llm.generate({"prompt_token_ids": text}, params, use_tqdm=False)
    scored = zip(output.prompt_logprobs[1:], text[1:], strict=True)
    found = [step[token].logprob for step, token in scored]
    expected = wanted[0, :-1].log_softmax(-1)[range(len(text) - 1), text[1:]]
    assert torch.tensor(found) == pytest.approx(expected, abs=1e-3)


def test_sixteen_bits(tmp_path: Path) -> None:
    llm = LLM(saved(tiny_model("GraniteForCausalLM"), tmp_path), **FORCED | {"dtype": "bfloat16"})
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    assert len(ids(llm.generate([{"prompt_token_ids": PROMPTS[1]}], params, use_tqdm=False))) == 1
    assert way_of(llm) == "fallback"
    llm.close()


class Renamed(transformers.LlamaForCausalLM):  # type: ignore[misc]
    """A class that Transformers does not have."""


@pytest.mark.parametrize("named", [Renamed, f"{__name__}:Renamed"], ids=["class", "name"])
def test_a_registered_class_is_run(named: Any, tmp_path: Path) -> None:
    model = tiny_model("LlamaForCausalLM")
    path = saved(model, tmp_path)
    _edit(path, architectures=["RenamedForCausalLM"])
    with pytest.raises(UnsupportedModel, match="RenamedForCausalLM is not supported"):
        LLM(path, **OPTIONS)
    try:
        ModelRegistry.register_model("RenamedForCausalLM", named)
        assert "RenamedForCausalLM" in ModelRegistry.get_supported_archs()
        llm = LLM(path, **OPTIONS)
    finally:
        registered.CLASSES.pop("RenamedForCausalLM", None)
    assert wrong(llm, model) == ""
    llm.close()


def test_a_registered_family_reads_its_models(tmp_path: Path) -> None:
    model = tiny_model("LlamaForCausalLM")
    path = saved(model, tmp_path)
    _edit(path, architectures=["OtherForCausalLM"])
    try:
        ModelRegistry.register_model("OtherForCausalLM", BY_ARCHITECTURE["LlamaForCausalLM"])
        llm = LLM(path, **OPTIONS)
    finally:
        BY_ARCHITECTURE.pop("OtherForCausalLM", None)
    assert way_of(llm) == "native"
    assert wrong(llm, model) == ""
    llm.close()


@pytest.mark.parametrize("given", [object, 3, "no colon", None])
def test_what_is_no_class_is_not_registered(given: Any) -> None:
    with pytest.raises(InvalidOption, match="PreTrainedModel"):
        ModelRegistry.register_model("MyForCausalLM", given)


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_code_of_a_directory_runs_only_if_it_is_trusted(tmp_path: Path) -> None:
    model = tiny_model("LlamaForCausalLM")
    path = saved(model, tmp_path)
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    _edit(path, architectures=["OwnForCausalLM"], model_type="own", auto_map=auto_map)
    ran = tmp_path / "ran"
    (tmp_path / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\n{OWN_CODE}")
    with pytest.raises(UnsupportedModel, match="trust_remote_code=True"):
        LLM(path, **OPTIONS)
    assert not ran.exists()
    llm = LLM(path, trust_remote_code=True, **OPTIONS)
    assert ran.exists()
    assert wrong(llm, model) == ""
    llm.close()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (
            {"quantization_config": {"quant_method": "aqlm"}},
            UnsupportedModel,
            "quant_method 'aqlm'",
        ),
        ({"n_layer": 10**9}, CorruptModel, "n_layer must be"),
        ({"architectures": ["NoSuchForCausalLM"]}, UnsupportedModel, "NoSuchForCausalLM"),
        ({"n_head": 5}, UnsupportedModel, "GPT2LMHeadModel: Transformers cannot make it"),
        ({"n_embd": "wide"}, CorruptModel, "GPT2Config refuses it"),
    ],
    ids=["quantised", "layers", "architecture", "heads", "word"],
)
def test_what_cannot_be_meant_is_refused(
    change: dict[str, Any], error: type[Exception], match: str, tmp_path: Path
) -> None:
    path = saved(tiny_model("GPT2LMHeadModel"), tmp_path)
    _edit(path, **change)
    with pytest.raises(error, match=match):
        LLM(path, model_impl="transformers", **OPTIONS)


def test_pickled_weights_are_refused_with_the_way_out(tmp_path: Path) -> None:
    path = saved(tiny_model("PhiForCausalLM"), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match=r"only as pytorch_model\.bin.*save_pretrained"):
        LLM(path, **FORCED)


def test_a_weight_that_is_missing_or_of_another_shape_is_named(tmp_path: Path) -> None:
    path = saved(tiny_model("GraniteForCausalLM"), tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    norm = weights.pop("model.norm.weight")
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(CorruptModel, match=r"model\.norm\.weight"):
        LLM(path, **FORCED)
    save_file({**weights, "model.norm.weight": torch.cat([norm, norm])}, file, {"format": "pt"})
    with pytest.raises(CorruptModel, match=r"model\.norm\.weight|size mismatch"):
        LLM(path, **FORCED)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_invariant": True},
        {"quantization": "int8", "dtype": "auto"},
        {"kv_cache_dtype": "fp8"},
    ],
    ids=["batch_invariant", "int8", "fp8"],
)
def test_what_needs_layers_of_quires_own_is_refused(options: Any, tmp_path: Path) -> None:
    path = saved(tiny_model("GraniteForCausalLM"), tmp_path)
    with pytest.raises(NotSupported, match="layers of quire's own"):
        LLM(path, **FORCED | options)


def test_a_state_outside_of_caches_is_refused_unless_whole_texts_are_asked_for(
    tmp_path: Path,
) -> None:
    path = saved(tiny_model("RecurrentGemmaForCausalLM"), tmp_path)
    refused = r"RecurrentGemmaForCausalLM: its layers keep a state of another kind.*slow"
    with pytest.raises(UnsupportedModel, match=refused):
        LLM(path, **OPTIONS)


def test_a_gguf_file_is_not_for_transformers() -> None:
    with pytest.raises(NotSupported, match="GGUF"):
        LLM("smollm2", model_impl="transformers")


def test_windows_are_read_from_masks() -> None:
    masks = transformers.masking_utils
    assert window_of(masks.causal_mask_function) is None
    assert window_of(masks.sliding_window_causal_mask_function(4096)) == 4096
    assert window_of(masks.sliding_window_causal_mask_function(1)) == 1
    assert window_of(masks.bidirectional_mask_function) == NOT_A_WINDOW
    chunks = masks.chunked_causal_mask_function(8192, torch.zeros(1, dtype=torch.int64))
    assert window_of(chunks) == NOT_A_WINDOW
    packed = masks.packed_sequence_mask_function(torch.zeros(1, 5, dtype=torch.int64))
    assert window_of(packed) == NOT_A_WINDOW


def _edit(path: str, **changes: Any) -> None:
    file = Path(path) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    "states", [{}, {"recurrent_states": None}, {"recurrent_states": {0: None}}]
)
def test_states_are_kept_only_where_caches_number_them(
    states: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers as Transformers 5.3, 5.10 and 5.22 have them: what the older ones keep is unknown."""
    layer = SimpleNamespace(**states)
    made = SimpleNamespace(layers=[layer])
    monkeypatch.setattr(kept_states, "DynamicCache", lambda config: made)
    known = isinstance(states.get("recurrent_states"), dict)
    assert kept_states.cache_layers(object()) == ([layer] if known else [])


def test_a_tensor_that_the_class_leaves_out_of_a_layer_is_refused(tmp_path: Path) -> None:
    path = Path(saved(tiny_model("SeedOssForCausalLM"), tmp_path)) / "model.safetensors"
    extra = {"model.layers.9.mlp.up_proj.weight": torch.ones(3)}  # behind the last layer
    save_file({**load_file(path), **extra}, path, {"format": "pt"})
    LLM(str(path.parent), **FORCED).close()
    extra = {"model.layers.1.self_attn.q_norm.weight": torch.ones(8)}
    save_file({**load_file(path), **extra}, path, {"format": "pt"})
    with pytest.raises(UnsupportedModel, match=r"no part for 'model\.layers\.1\.self_attn\.q_norm"):
        LLM(str(path.parent), **FORCED)
