"""Keys and values that are kept as one row a token: what that takes, and that nothing which makes a
cache worth having changes an answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire import LLM, SamplingParams
from quire.errors import NotSupported
from quire.executor.cuda.steady import check_steady
from quire.executor.memory import block_bytes, make_cache
from quire.session import fallback
from quire.spec import ModelSpec
from quire.weights.hf_config import read_config, spec_from_hf
from quire.weights.load import load_weights
from quire.weights.source import locate
from tests.parity.more_families import LATENTS, random_model
from tests.weights.gguf_families import write
from tests.weights.test_gguf_families import CASES

gguf = pytest.importorskip("gguf")

NAME = "deepseek v3, groups, yarn"
ROW = 24 + 8  # numbers that a layer keeps of a token
SHARED = list(range(3, 40))
PROMPTS = [[*SHARED, 7 + i, 50, i] for i in range(6)] + [[5, 6], [90] * 33]


@pytest.fixture(scope="module")
def oracle() -> Any:
    return random_model(LATENTS[NAME])


@pytest.fixture(scope="module")
def directory(oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("latents")
    oracle.save_pretrained(path)
    return path


def opened(path: Path, **options: Any) -> LLM:
    given: dict[str, Any] = {"dtype": "float32", "skip_tokenizer_init": True, "max_num_seqs": 8}
    given |= {"kv_cache_memory_bytes": 4 << 20, "max_num_batched_tokens": 37}
    return LLM(str(path), **(given | options))


def answers(llm: LLM, prompts: list[list[int]] = PROMPTS, **params: Any) -> list[list[list[int]]]:
    asked = SamplingParams(**{"temperature": 0, "max_tokens": 14, "ignore_eos": True, **params})
    made = llm.generate(prompts, asked, use_tqdm=False)
    return [[list(answer.token_ids) for answer in one.outputs] for one in made]


@pytest.fixture(scope="module")
def plain(directory: Path) -> Iterator[tuple[LLM, list[list[list[int]]]]]:
    with opened(directory) as llm:
        yield llm, answers(llm)


def test_a_token_takes_one_row_in_each_layer(directory: Path) -> None:
    spec = spec_from_hf(read_config(directory))
    assert spec.kv_values_per_token == spec.num_layers * ROW
    assert block_bytes(spec, 16, torch.float32) == spec.num_layers * 16 * ROW * 4
    cache = make_cache(spec, 5, 16, torch.float32, torch.device("cpu"))
    assert cache.shape == (spec.num_layers, 1, 5, 1, 16, ROW)
    budget = 40 * spec.num_layers * 16 * ROW * 4
    with opened(directory, kv_cache_memory_bytes=budget) as llm:
        assert llm._session.engine.scheduler.pool.num_blocks == 40


def test_preemption_samples_and_cached_beginnings_change_nothing(
    directory: Path, plain: tuple[LLM, list[list[list[int]]]]
) -> None:
    llm, expected = plain
    assert answers(llm) == expected  # from cached blocks
    drawn = {"temperature": 1.0, "seed": 3, "n": 3}
    samples = answers(llm, **drawn)
    assert len({tuple(one) for group in samples for one in group}) > len(samples)
    # 5 blocks a row, and room for a few rows: others give way and come back.
    with opened(directory, num_gpu_blocks_override=14) as small:
        assert answers(small) == expected
        assert answers(small, **drawn) == samples
        metrics = {one.name: one for one in small.get_metrics()}
        assert metrics["vllm:num_preemptions"].value > 0  # type: ignore[attr-defined]


def test_a_row_has_the_same_bits_in_any_batch(directory: Path) -> None:
    with opened(directory, batch_invariant=True, enable_prefix_caching=False) as llm:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0)

        def scores(prompts: list[list[int]]) -> list[list[float]]:
            made = [one.outputs[0] for one in llm.generate(prompts, params, use_tqdm=False)]
            pairs = [zip(a.logprobs or (), a.token_ids, strict=True) for a in made]
            return [[line[token].logprob for line, token in pair] for pair in pairs]

        assert scores(PROMPTS) == [scores([one])[0] for one in PROMPTS]


def test_in_bytes_it_answers_much_the_same(
    directory: Path, plain: tuple[LLM, list[list[list[int]]]]
) -> None:
    with opened(directory, dtype="auto", quantization="int8") as llm:
        first = [answer[0][0] for answer in answers(llm, max_tokens=1)]
    same = [one == other[0][0] for one, other in zip(first, plain[1], strict=True)]
    assert sum(same) >= len(same) // 2


def test_weights_are_exchanged_by_the_names_of_files(directory: Path, tmp_path: Path) -> None:
    other = random_model(LATENTS[NAME])
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(0.7)
    other.save_pretrained(tmp_path)
    with opened(tmp_path) as fresh:
        expected = answers(fresh)
    with opened(directory) as llm:
        assert answers(llm) != expected
        llm.collective_rpc("reload_weights", kwargs={"weights_path": str(tmp_path)})
        assert answers(llm) == expected


def test_blocks_of_a_gguf_file_are_read_turned(tmp_path: Path) -> None:
    """The product of keys lies there by head, turned, in blocks across what quire has as rows."""
    config = type(LATENTS[NAME])(
        **{**LATENTS[NAME].to_dict(), "qk_nope_head_dim": 32, "kv_lora_rank": 32}
    )
    random_model(config).save_pretrained(tmp_path)
    said = {**CASES["deepseek v3, no rank"][2], "attention.q_lora_rank": 20}
    said |= {"attention.kv_lora_rank": 32, "attention.key_length_mla": 40}
    said |= {"attention.key_length": 40, "attention.value_length": 32}
    write(
        tmp_path,
        tmp_path / "m.gguf",
        config,
        "deepseek2",
        said,
        packed={"k_b": "Q8_0", "v_b": "Q8_0"},
    )
    spec = locate(tmp_path / "m.gguf").spec()
    found = load_weights(locate(tmp_path / "m.gguf"), spec, dtype=torch.float32, device="cpu")
    exact = load_weights(locate(tmp_path), spec, dtype=torch.float32, device="cpu")
    name = "layers.1.attn.kv_b.weight"
    by_head = exact[name].view(6, 42, 32)
    keys = packed(by_head[:, :32].transpose(1, 2)).transpose(1, 2)
    wanted = torch.cat([keys, packed(by_head[:, 32:])], dim=1)
    assert torch.equal(found[name], wanted.reshape(found[name].shape))
    assert not torch.equal(found[name], exact[name])


def packed(values: torch.Tensor) -> torch.Tensor:
    """What blocks of the last dimension leave of numbers."""
    kind = gguf.GGMLQuantizationType.Q8_0
    blocks = gguf.quantize(np.ascontiguousarray(values.numpy()), kind)
    return torch.from_numpy(gguf.dequantize(blocks, kind))


def test_a_gpu_has_kernels_for_them_but_in_fp8(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quire.options import DeviceFacts, Options, resolve

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    files = locate(directory)
    spec = fallback.plan_model(files, Options())
    assert spec == files.spec() and isinstance(spec, ModelSpec)
    gpu = DeviceFacts("cuda", 80 << 30, 79 << 30, 132, ("bfloat16",))
    assert resolve(Options(), spec, gpu).kv_cache_dtype == "auto"
    with pytest.raises(NotSupported, match="'fp8' is not built for models that keep latents"):
        resolve(Options(kv_cache_dtype="fp8"), spec, gpu)
    steady = replace(resolve(Options(), spec, gpu), batch_invariant=True)
    with pytest.raises(NotSupported, match="batch_invariant=True .* keep latents"):
        check_steady(steady, spec)
