"""Mixtures whose experts stay quantised on a GPU, through the whole engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.gpt_oss import GptOssConfig
from transformers.models.qwen3_moe import Qwen3MoeConfig

from quire import LLM, LoRARequest, SamplingParams
from quire.backends.triton.coded_experts import CodedExperts
from quire.backends.triton.experts import Pairs, Tile
from quire.backends.triton.fp8_experts import Fp8Experts
from tests.adapters.peft_files import named
from tests.adapters.test_experts import adapter, random_pairs, stacked
from tests.backends.triton.test_fp8_product import rounded
from tests.parity.more_families import EXPERTS, random_model
from tests.parity.more_families import SIZES as USUAL
from tests.weights.quantised_files import CASES as QUANTISED
from tests.weights.quantised_files import write_quantised
from tests.weights.test_gguf_families import CASES as GGUF
from tests.weights.test_mxfp4_experts import SIZES, publish

pytestmark = pytest.mark.gpu
# Rows that are drawn alone, that share a pass with prompts, and many of them.
COUNTS = (2, 20, 60)
WIDE = {"hidden_size": 256, "num_experts": 8, "num_experts_per_tok": 3}
CONFIG = Qwen3MoeConfig(
    **{**USUAL, **EXPERTS, **WIDE, "moe_intermediate_size": 128, "norm_topk_prob": True}
)


def gpt_oss(directory: Path) -> Path:
    sizes = {**SIZES, "hidden_size": 128, "intermediate_size": 128}
    publish(random_model(GptOssConfig(**sizes)), directory)
    return directory


def qwen3_moe(case: str) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        write_quantised(random_model(CONFIG), directory, QUANTISED[case])
        return directory

    return write


def in_two_formats(directory: Path) -> Path:
    """As files of Q4_K_M: one of the two products has no kernel."""
    from tests.weights.gguf_families import write

    random_model(CONFIG).save_pretrained(directory)
    packed = {"gate_exps": "Q4_0", "up_exps": "Q4_0", "down_exps": "Q8_0"}
    arch, _, said = GGUF["qwen3 moe"]
    said = {**said, "expert_feed_forward_length": 128}
    write(directory, directory / "m.gguf", CONFIG, arch, said, packed=packed)
    return directory / "m.gguf"


Kept = CodedExperts | Fp8Experts
MODELS: dict[str, tuple[Callable[[Path], Path], type[Kept]]] = {
    "mxfp4": (gpt_oss, CodedExperts),
    "awq": (qwen3_moe("awq"), CodedExperts),
    "gptq": (qwen3_moe("gptq"), CodedExperts),
    "packed with zeros": (qwen3_moe("packed with zeros"), CodedExperts),
    "gguf": (in_two_formats, CodedExperts),
    "fp8 blocks": (qwen3_moe("fp8 blocks"), Fp8Experts),
    "fp8 by tensor": (qwen3_moe("fp8 by tensor"), Fp8Experts),
}


@pytest.mark.parametrize("name", MODELS)
def test_experts_stay_as_they_are_and_multiply_as_plain_ones(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each product on its own in passes that are not captured, and what captured ones answer."""
    write, kind = MODELS[name]
    model = write(tmp_path)
    multiply, apart = kind.multiply, []

    def beside_plain_steps(
        kept: Kept, x: Tensor, pairs: Pairs, tile: Tile, *, per_row: int
    ) -> Tensor:
        made: Tensor = multiply(kept, x, pairs, tile, per_row=per_row)
        expected = in_plain_steps(kept, x, pairs, tile, per_row=per_row)
        errors = (made.double() - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-6)
        apart.append(float(errors.max()))
        return made

    with monkeypatch.context() as patched:
        patched.setattr(kind, "multiply", beside_plain_steps)
        one_by_one = first_scores(model, enforce_eager=True)
    assert apart and max(apart) < 1e-2, apart
    # One wrong expert of eight changes these by 0.18 on average, other bits by less than 0.1.
    captured = first_scores(model)
    assert float((captured - one_by_one).abs().mean()) < 0.1


def test_adapters_add_to_experts_that_stay_as_they_are(tmp_path: Path) -> None:
    model = random_model(CONFIG)
    write_quantised(model, tmp_path, QUANTISED["awq"])
    added = adapter(stacked(random_pairs(model, transposed=False), swapped=False))
    lora = named(added.save(tmp_path / "own"))
    kept, plain = (
        first_scores(tmp_path, lora, quantization=way, enable_lora=True) for way in ("awq", "none")
    )
    assert float((kept - plain).abs().mean()) < 0.1
    without = first_scores(tmp_path, quantization="awq", enable_lora=True)
    assert float((kept - without).abs().mean()) > 0.3


def in_plain_steps(kept: Kept, x: Tensor, pairs: Pairs, tile: Tile, *, per_row: int) -> Tensor:
    """One expert after the other in float64. Products in fp8 round activations, too."""
    experts, lines, columns = kept.shape
    made, first = torch.zeros(pairs.count, lines, dtype=torch.float64, device=x.device), 0
    for expert, count in zip(range(experts), pairs.counts.tolist(), strict=True):
        if count == 0:
            continue
        mine = pairs.ordered[first : first + count].long()
        rows = x[mine // per_row].double()
        if isinstance(kept, Fp8Experts):
            rows = rounded(rows, min(kept.matrix.wide, columns))
        made[mine] = rows @ kept.plain(expert).double().t()
        if kept.biases is not None:
            made[mine] += kept.biases[expert].double()
        first += -(-count // tile.rows) * tile.rows
    return made


def first_scores(model: Path, lora: LoRARequest | None = None, **asked: Any) -> Tensor:
    """The log-probability of each prompt's first token."""
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0)
    usual: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "bfloat16"}
    usual |= {"kv_cache_memory_bytes": 32 << 20, "max_model_len": 128}
    usual |= {"quantization": "gguf"} if model.suffix == ".gguf" else {}
    found: list[float] = []
    with LLM(str(model), **usual, **asked) as llm:
        for count in COUNTS:
            prompts = [[(7 * i + j * j) % 90 for j in range(10 + i)] for i in range(count)]
            for output in llm.generate(prompts, params, lora_request=lora, use_tqdm=False):
                scores = output.outputs[0].logprobs
                assert scores is not None
                found.append(next(iter(scores[0].values())).logprob)
    return torch.tensor(found)
