"""Models whose layers keep states write what Transformers writes, wherever their states come from:
the token before, a chunk before, a snapshot at the end of a block, a row that was forked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig
from transformers.models.olmo_hybrid import OlmoHybridConfig
from transformers.models.qwen3_5 import (
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5TextConfig,
)
from transformers.models.qwen3_5_moe import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

from quire import LLM, SamplingParams
from quire.cache.groups import blocks_held
from quire.executor.cpu.local import LocalExecutor
from quire.executor.memory import groups_of, windows_of
from quire.sampling_params import BeamSearchParams
from quire.weights.hf_config import read_config, spec_from_hf
from quire.weights.load import load_weights
from quire.weights.source import locate
from tests.executor.cuda.plain import answers
from tests.parity.families import Pair
from tests.parity.families_with_states import OLMO_HYBRID, WITH_STATES
from tests.parity.more_families import HYBRID, HYBRID_EXPERTS, MORE, random_model
from tests.parity.test_families import check_against, check_directory
from tests.parity.test_windows import OUTPUT, PROMPT, asked, check
from tests.specs import small_config

# A model of each kind of state.
MODELS: dict[str, PretrainedConfig] = {
    "qwen3_next": MORE["qwen3_next"],
    **{name: WITH_STATES[name] for name in ("lfm2 moe", "bamba")},
    "mamba2": WITH_STATES["mamba2"],  # no layer attends, so no key is kept
}


@cache
def pair_of(name: str) -> Pair:
    oracle = random_model(MODELS[name])
    with TemporaryDirectory() as folder:
        oracle.save_pretrained(folder)
        spec = spec_from_hf(read_config(Path(folder)))
        weights = load_weights(locate(folder), spec, dtype=torch.float32, device="cpu")
    return Pair(oracle, spec, weights)


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest) -> Pair:
    return pair_of(request.param)


def test_prompts_of_many_blocks(pair: Pair) -> None:
    """Whole, in chunks that are no multiple of a block, and each over what another left cached."""
    roomy = small_config(num_blocks=400)
    check(pair, asked(), roomy)
    check(pair, asked(), replace(roomy, max_num_batched_tokens=21, max_repeat=4, depth=2))


def test_a_pool_with_hardly_room_for_one(pair: Pair) -> None:
    """Rows are preempted and come back, from a snapshot or from their first token."""
    config = small_config(max_num_batched_tokens=24, depth=2, max_repeat=4)
    windows = windows_of(groups_of(config, pair.spec))
    assert windows.count(2) > windows.count(None)
    num_blocks = blocks_held(windows, config.block_size, PROMPT + 4 + OUTPUT) + 12
    check(pair, asked(), replace(config, num_blocks=num_blocks))


def test_a_state_that_was_given_back_is_never_read(pair: Pair) -> None:
    """The same tokens where whatever is given back turns into NaN at once."""
    requests = asked(3)
    config = small_config(num_blocks=400, max_num_batched_tokens=24)
    wanted = answers(LocalExecutor(config, pair.spec, dict(pair.weights)), config, requests)
    executor = LocalExecutor(config, pair.spec, dict(pair.weights))
    found = answers(executor, config, requests, poisoned=True)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.output_ids.tolist() == theirs.output_ids.tolist()


@pytest.fixture(scope="module")
def directory(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("states")
    pair.oracle.save_pretrained(path)
    return path


def open_llm(directory: Path, **options: Any) -> LLM:
    usual = {"dtype": "float32", "skip_tokenizer_init": True, "kv_cache_memory_bytes": 8 << 20}
    return LLM(str(directory), **{**usual, **options})


@pytest.fixture(scope="module")
def llm(directory: Path) -> Iterator[LLM]:
    with open_llm(directory, max_num_batched_tokens=40) as made:
        yield made


def prompt_of(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(2, 96, count)]


def test_samples_of_one_prompt_go_their_own_ways(llm: LLM, pair: Pair) -> None:
    """Their prompts end inside a block, whose state each of them takes along."""
    oracle, prompt = pair.oracle, prompt_of(45)
    params = SamplingParams(
        n=4, temperature=1.0, seed=3, max_tokens=24, ignore_eos=True, logprobs=0
    )
    [output] = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    texts = {tuple(one.token_ids) for one in output.outputs}
    assert len(texts) == 4
    for one in output.outputs:
        text = torch.tensor([[*prompt, *one.token_ids]])
        with torch.no_grad():
            chances = oracle(text).logits[0].float().log_softmax(-1)[len(prompt) - 1 : -1]
        assert one.logprobs is not None
        for at, token, entry in zip(chances, one.token_ids, one.logprobs, strict=True):
            assert abs(float(at[token]) - entry[token].logprob) <= 1e-3


def test_a_prompt_that_comes_again_begins_at_a_snapshot(
    llm: LLM, pair: Pair, directory: Path
) -> None:
    oracle, prompt = pair.oracle, prompt_of(70, seed=1)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0)

    def tokens(engine: LLM, asked: list[int]) -> tuple[int | None, list[int]]:
        [output] = engine.generate([{"prompt_token_ids": asked}], params, use_tqdm=False)
        [one] = output.outputs
        assert one.logprobs is not None
        logprobs = [
            entry[token].logprob for token, entry in zip(one.token_ids, one.logprobs, strict=True)
        ]
        check_against(oracle, asked, list(one.token_ids), logprobs)
        return output.num_cached_tokens, list(one.token_ids)

    first, again = tokens(llm, prompt), tokens(llm, prompt)
    assert (first[0], again[0]) == (0, 64)
    # What it wrote is cached, too; and a prompt that leaves it between two snapshots.
    assert tokens(llm, [*prompt, *first[1], 5, 6, 7])[0] in (64, 80 - 16)
    assert tokens(llm, [*prompt[:40], 1, 2, 3])[0] == 32
    with open_llm(directory, enable_prefix_caching=False) as bare:
        assert tokens(bare, prompt) == (0, first[1]) == tokens(bare, prompt)


def test_ranks_that_each_keep_a_part_of_a_state_write_what_one_writes(
    llm: LLM, directory: Path
) -> None:
    """In chunks, several rows, and from a snapshot."""
    prompts = [{"prompt_token_ids": prompt_of(count, seed=9)} for count in (70, 70, 45, 3)]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=0)

    def asked(engine: LLM) -> tuple[list[list[int]], list[float]]:
        given = engine.generate(prompts, params, use_tqdm=False)
        [again] = engine.generate(prompts[:1], params, use_tqdm=False)
        assert again.num_cached_tokens == 64
        answers = [one.outputs[0] for one in (*given, again)]
        pairs = [
            (p, t) for a in answers for p, t in zip(a.logprobs or (), a.token_ids, strict=True)
        ]
        return [list(a.token_ids) for a in answers], [p[t].logprob for p, t in pairs]

    tokens, logprobs = asked(llm)
    with open_llm(directory, max_num_batched_tokens=40, tensor_parallel_size=2) as ranks:
        found = asked(ranks)
    assert found[0] == tokens
    assert found[1] == pytest.approx(logprobs, abs=1e-4)


def test_beams_and_scores_fork_states(llm: LLM, pair: Pair) -> None:
    oracle, prompt = pair.oracle, prompt_of(37, seed=2)
    search = BeamSearchParams(beam_width=3, max_tokens=10, ignore_eos=True)
    [found] = llm.beam_search([{"prompt_token_ids": prompt}], search)
    written = [sequence.tokens[len(prompt) :] for sequence in found.sequences]
    endings = [written[0][:3], [*written[0][:3], 7], written[0][:5], [9, 9]]
    [scores] = llm.score_continuations([prompt], [endings], use_tqdm=False)
    with torch.no_grad():
        for tokens, logprob in [
            *((s.tokens[len(prompt) :], s.cum_logprob) for s in found.sequences),
            *((e, s.logprob) for e, s in zip(endings, scores, strict=True)),
        ]:
            chances = oracle(torch.tensor([[*prompt, *tokens]])).logits[0].float().log_softmax(-1)
            at = torch.arange(len(prompt) - 1, len(prompt) - 1 + len(tokens))
            assert abs(float(chances[at, torch.tensor(tokens)].sum()) - logprob) <= 1e-3


def test_a_block_that_holds_a_large_state(tmp_path: Path) -> None:
    """Of 384 tokens, no power of two: a prompt fills one, and the next begins behind it."""
    config = {**HYBRID, "num_key_value_heads": 1, "head_dim": 16}
    config |= {"linear_num_value_heads": 8, "linear_num_key_heads": 4}
    config |= {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
    oracle = random_model(Qwen3_5TextConfig(**config))
    oracle.save_pretrained(tmp_path)
    prompts = [prompt_of(400, seed=3), [*prompt_of(400, seed=3)[:390], 4, 5], prompt_of(20, seed=4)]
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0)
    with open_llm(tmp_path) as llm:
        assert llm._session.model.config.block_size == 384
        for prompt, cached in zip(prompts, (0, 384, 0), strict=True):
            [output] = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
            [one] = output.outputs
            assert output.num_cached_tokens == cached and one.logprobs is not None
            pairs = zip(one.token_ids, one.logprobs, strict=True)
            logprobs = [entry[token].logprob for token, entry in pairs]
            check_against(oracle, prompt, list(one.token_ids), logprobs)


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_the_text_of_a_model_that_sees(kind: str, tmp_path: Path) -> None:
    """Its names begin otherwise; experts may lie as one tensor, and layers that guess ahead behind
    the others."""
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
    vision |= {"out_hidden_size": HYBRID["hidden_size"]}
    text = {**HYBRID, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    text["rope_parameters"] |= {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25}
    text["rope_parameters"] |= {"mrope_interleaved": True}
    if kind == "dense":
        whole = Qwen3_5Config(text_config=text, vision_config=vision)
        oracle = Qwen3_5ForConditionalGeneration(whole).eval()
    else:
        text = {key: value for key, value in text.items() if key != "intermediate_size"}
        config = Qwen3_5MoeConfig(text_config={**text, **HYBRID_EXPERTS}, vision_config=vision)
        oracle = Qwen3_5MoeForConditionalGeneration(config).eval()
    with torch.no_grad():
        for stored in oracle.state_dict().values():
            stored.add_(torch.randn_like(stored) * 0.05)
    oracle.save_pretrained(tmp_path)
    tensors = {name: tensor.contiguous() for name, tensor in oracle.state_dict().items()}
    assert any(".experts.gate_up_proj" in name for name in tensors) == (kind == "experts")
    save_file({**tensors, "mtp.fc.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    check_directory(tmp_path, oracle, kind, count=4, most=8)


def test_a_published_olmo_hybrid_has_convolutions_of_different_sizes(tmp_path: Path) -> None:
    """Transformers stores them as three equal parts, and one norm of layers that attend under the
    name that it has in the others."""
    sizes = {"linear_num_value_heads": 4, "linear_value_head_dim": 5, "linear_key_head_dim": 6}
    config = OlmoHybridConfig(**{**OLMO_HYBRID, **sizes})
    oracle = random_model(config)
    oracle.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    for index, kind in enumerate(config.layer_types):
        layer = f"model.layers.{index}"
        if kind == "full_attention":
            norm = stored.pop(f"{layer}.feedforward_layer_norm.weight")
            stored[f"{layer}.post_attention_layernorm.weight"] = norm
            continue
        names = [f"{layer}.linear_attn.{one}_conv1d.weight" for one in "qkv"]
        taps = torch.cat([stored[name] for name in names]).split([12, 12, 20])
        stored |= {name: own.clone() for name, own in zip(names, taps, strict=True)}
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    check_directory(tmp_path, oracle, "olmo hybrid", count=4, most=8)


def errors_of(oracle: Any, directory: Path, **options: Any) -> list[float]:
    """|logprob - that of the oracle in float32| of tokens that are drawn with these options."""
    prompt = prompt_of(50, seed=5)
    oracle.save_pretrained(directory)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0)
    with open_llm(directory, **{"dtype": None, **options}) as llm:
        [output] = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    [one] = output.outputs
    with torch.no_grad():
        chances = oracle(torch.tensor([[*prompt, *one.token_ids]])).logits[0].log_softmax(-1)
    return [
        abs(float(chances[len(prompt) - 1 + at, token]) - entry[token].logprob)
        for at, (token, entry) in enumerate(zip(one.token_ids, one.logprobs or (), strict=True))
    ]


FEWER_BITS = (
    "qwen3_5",
    "lfm2",
    "granite hybrid",
    *(name for name in WITH_STATES if "falcon" in name),
)


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
@pytest.mark.parametrize("name", FEWER_BITS)
def test_fewer_bits_stay_close(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """States stay in float32, in blocks whose keys and values are smaller."""
    model = random_model({**MORE, **WITH_STATES}[name])
    assert max(errors_of(model, tmp_path, **options)) <= 0.4


def check_exchange(first: Any, second: Any, directory: Path) -> None:
    """The first one's model, given the weights of the second, which are others, computes that."""
    with torch.no_grad():
        for stored in second.state_dict().values():
            stored.add_(torch.randn_like(stored) * 0.1)
    first.save_pretrained(directory)
    prompt, params = prompt_of(30), SamplingParams(temperature=0, max_tokens=4, logprobs=0)
    with open_llm(directory) as llm:
        llm._session.model.executor.load_weights(second.state_dict().items())
        [output] = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    [one] = output.outputs
    pairs = zip(one.token_ids, one.logprobs or (), strict=True)
    logprobs = [entry[token].logprob for token, entry in pairs]
    check_against(second, prompt, list(one.token_ids), logprobs)


def test_weights_are_exchanged_in_place(tmp_path: Path) -> None:
    """Heads of q and gates, convolutions and slopes, each where its name says."""
    check_exchange(random_model(MORE["qwen3_5"]), random_model(MORE["qwen3_5"]), tmp_path)
