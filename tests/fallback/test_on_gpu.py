"""The fallback behind the CUDA runner: with plain ops on any machine, and on a GPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire import LLM, SamplingParams
from quire.backends.choose import torch_kernels
from quire.executor.cpu.local import LocalExecutor
from quire.executor.cuda.inline import InlineExecutor
from quire.models.decoder import head_shape
from quire.models.fallback import build
from quire.models.fallback.classes import CausalClass
from quire.models.fallback.loaded import LoadedModule
from quire.models.fallback.planning import FallbackPlan, plan_fallback
from quire.request import Request
from quire.sampling.keys import noise_key
from tests.executor.cuda.plain import PlainExecutor, answers
from tests.fallback.judging import OPTIONS, judged, way_of, wrong
from tests.fallback.tiny import saved, tiny_model
from tests.specs import small_config

# A window in some layers; a softcap in all; latent heads; experts; latent heads and experts.
SIDE_BY_SIDE = (
    "Gemma3ForCausalLM",
    "Gemma2ForCausalLM",
    "MiniCPM3ForCausalLM",
    "GraniteMoeForCausalLM",
    "DeepseekV3ForCausalLM",
)
EXPERTS = SIDE_BY_SIDE[3:]
# Its own alibi; positions of its own; states alone, and in some of the layers.
ONE_BY_ONE = ("BloomForCausalLM", "GPTJForCausalLM", "Mamba2ForCausalLM", "JambaForCausalLM")
# Of quire's own, with states in blocks of so few tokens that these prompts share some.
STATES = ("Lfm2ForCausalLM", "FalconH1ForCausalLM")
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 3, "top_p": 0.9},
    {"temperature": 0.0, "repetition_penalty": 1.2, "logprobs": 2},
    {"temperature": 0.7, "seed": 5, "min_p": 0.1, "n": 2},
)


def loaded(architecture: str) -> tuple[FallbackPlan, LoadedModule]:
    model = tiny_model(architecture)
    found = CausalClass(type(model), copy.deepcopy(model.config))
    plan = plan_fallback(found, "config.json", whole_texts=False)
    return plan, LoadedModule(model, plan.call, plan.seen)


def requests(count: int = 8) -> list[Request]:
    made = np.random.default_rng(0)
    asked = []
    for i in range(count):
        params = SamplingParams(max_tokens=6 + i, ignore_eos=True, **KINDS[i % len(KINDS)])
        ids = made.integers(3, 96, 3 + 5 * i).astype(np.int32)
        asked.append(Request(i, ids, params, params.max_tokens or 1, noise_key(i)))
    return asked


@pytest.mark.parametrize("architecture", SIDE_BY_SIDE[:2])
def test_the_cuda_runner_draws_the_tokens_of_the_cpu_engine(architecture: str) -> None:
    plan, module = loaded(architecture)
    config = small_config(depth=2, max_repeat=8, num_blocks=40, max_model_len=64)
    got = answers(PlainExecutor(config, plan.spec, module), config, requests())
    plain = replace(config, depth=1, max_repeat=1, num_blocks=256)
    wanted = answers(LocalExecutor(plain, plan.spec, module), plain, requests())
    assert [s.output_ids.tolist() for s in got] == [s.output_ids.tolist() for s in wanted]


@pytest.fixture
def whole_floats() -> Iterator[None]:
    """Before graphs are captured: some images of torch round float32 to tf32."""
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, False
    yield
    matmul.allow_tf32 = before


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", SIDE_BY_SIDE)
@pytest.mark.usefixtures("whole_floats")
def test_a_gpu_answers_as_transformers_does(architecture: str, tmp_path: Path) -> None:
    model = tiny_model(architecture)
    options = {**OPTIONS, "device": "cuda", "block_size": 16, "num_gpu_blocks_override": 12}
    llm = LLM(saved(model, tmp_path), **options, model_impl="transformers")
    assert way_of(llm) == "fallback"
    assert wrong(llm, model) == ""
    # Experts in float32 ask the device who is whose.
    assert bool(executor_of(llm)._runner.graphs._graphs) == (architecture not in EXPERTS)
    llm.close()


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ONE_BY_ONE)
@pytest.mark.usefixtures("whole_floats")
def test_a_gpu_computes_what_is_not_side_by_side(architecture: str, tmp_path: Path) -> None:
    model, asked = tiny_model(architecture), {"device": "cuda", "model_impl": "transformers"}
    found = judged(model, tmp_path, **asked)
    assert (found.how, found.wrong) == ("fallback, one by one", "")


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", STATES)
@pytest.mark.usefixtures("whole_floats")
def test_rows_begin_with_states_of_others(architecture: str, tmp_path: Path) -> None:
    """Which a device computes beside them: a state is taken up one plan later."""
    found = judged(tiny_model(architecture), tmp_path, device="cuda", block_size=16)
    assert (found.how, found.wrong) == ("native", "")


@pytest.mark.gpu
def test_a_model_computed_inline_gives_its_memory_back_and_wakes(tmp_path: Path) -> None:
    model = tiny_model(ONE_BY_ONE[0])
    options = {**OPTIONS, "device": "cuda"}
    llm = LLM(saved(model, tmp_path), **options, enable_sleep_mode=True)
    asked = {"prompt_token_ids": [5, 6, 7]}, SamplingParams(temperature=0, max_tokens=5)
    before = llm.generate(*asked)[0].outputs[0].token_ids
    for level in (1, 2):
        llm.sleep(level)
        llm.wake_up()
        assert llm.generate(*asked)[0].outputs[0].token_ids == before
    llm.close()


def test_copies_of_weights_go_with_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept by one sleep, dropped by the next; any machine's memory will do."""
    monkeypatch.setattr(InlineExecutor, "_free_memory", lambda _: 1 << 28)
    monkeypatch.setattr(InlineExecutor, "_computes_with", lambda _: "")
    plan, module = loaded(ONE_BY_ONE[0])
    executor = InlineExecutor(small_config(num_blocks=40, max_model_len=64), plan.spec, module)
    executor.start()
    for keep in (True, False):
        executor.sleep(keep_weights=keep)
        assert (executor._on_host is not None) == keep


def test_a_class_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was tried to choose an executor, it is not when that builds it."""
    plan, module = loaded(SIDE_BY_SIDE[0])
    monkeypatch.setattr(build, "trial", lambda *_: pytest.fail("it was tried again"))
    tried = replace(module, is_tried=True)
    shape = head_shape(plan.spec, 16, torch.float32)
    kernels = torch_kernels(shape, batch_invariant=False)
    assert build.build_fallback(tried, kernels, shape).packed


def executor_of(llm: LLM) -> Any:
    return llm._session.model.executor
