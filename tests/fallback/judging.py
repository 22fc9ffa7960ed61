"""Whether quire answers as Transformers does, for one tiny model after the other.

Each model is run with prompts in chunks, in a pool too small for all of them (so that some are
preempted), and again over its prefix cache. The judge is Transformers' `generate`, and one plain
call over prompt and answer for logprobs and near ties.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quire import LLM, SamplingParams
from quire.errors import InvalidOption, UnsupportedModel
from quire.models.decoder import Decoder
from quire.models.fallback.body import plain_logits
from tests.fallback.tiny import saved
from tests.parity.test_same_tokens import preempt_every_second_step

SHARED = list(range(20, 36))
PROMPTS = [
    [40, 41, 42],
    [*SHARED, 50, 51, 52],
    [*SHARED, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69],
    [*reversed(SHARED), *range(70, 87)],
]
NUM_TOKENS = 8
TIE, LOGPROBS = 1e-4, 1e-3
OPTIONS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "device": "cpu",
    "max_num_batched_tokens": 16,
    "max_num_seqs": 4,
    "block_size": 4,
    "num_gpu_blocks_override": 14,
    "max_model_len": 64,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an architecture runs, or why it does not; `wrong` if it ran and should not have."""

    how: str
    why: str = ""
    wrong: str = ""


def judged(model: Any, directory: Path, **options: Any) -> Verdict:
    """Save a model, run it, compare."""
    path, refused = saved(model, directory), ""
    # What was saved is the judge: a class may tie weights when it is loaded.
    model = type(model).from_pretrained(path).eval()
    for more in ({}, {"model_impl": "transformers"}):
        try:
            llm = _opened(path, OPTIONS | more | options)
        except UnsupportedModel as error:
            refused = str(error).rpartition("Nor with Transformers: ")[2].replace(path, "")
            continue
        try:
            how = way_of(llm)
            return Verdict(how, why_of(llm), wrong(llm, model))
        finally:
            llm.close()
    return Verdict("refused", refused)


def _opened(path: str, options: dict[str, Any]) -> LLM:
    """With blocks that a state fits into, where layers keep states, and as many for each group of
    layers that see equally far."""
    try:
        llm = LLM(path, **options)
    except InvalidOption as error:
        if error.parameter != "block_size":
            raise
        return LLM(path, **options | {"block_size": None, "num_gpu_blocks_override": None})
    groups = llm._session.engine.scheduler.pool.num_groups
    if groups == 1:
        return llm
    llm.close()
    blocks = options["num_gpu_blocks_override"] * groups
    return LLM(path, **options | {"num_gpu_blocks_override": blocks})


def way_of(llm: LLM) -> str:
    model: Any = llm._session.model.executor._model  # type: ignore[attr-defined]
    if isinstance(model, Decoder):
        return "native"
    if model.packed:
        return "fallback"
    return "fallback, whole texts" if model.seen.is_whole else "fallback, one by one"


def why_of(llm: LLM) -> str:
    """Why it is not computed side by side."""
    model: Any = llm._session.model.executor._model  # type: ignore[attr-defined]
    return "" if isinstance(model, Decoder) or model.packed else str(model.seen.why_rows)


def wrong(llm: LLM, model: Any, *, preempts: bool = True) -> str:
    """What differs from Transformers; empty if nothing does."""
    if getattr(model.config, "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # others leave a softcap out, where they are allowed
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    scheduler = llm._session.engine.scheduler
    if preempts:
        preempt_every_second_step(scheduler)
    for again in (False, True):
        outputs = llm.generate(prompts, params, use_tqdm=False)
        for prompt, output in zip(PROMPTS, outputs, strict=True):
            if found := _difference(model, prompt, output.outputs[0]):
                return f"{'over the prefix cache: ' if again else ''}{found}"
    # A state is found again at the end of a block, and some take more than these prompts have.
    has_whole_blocks = llm._session.model.config.block_size < max(map(len, PROMPTS))
    if has_whole_blocks and not any(output.num_cached_tokens for output in outputs):
        return "no prefix was found again"
    return "nothing was preempted" if preempts and not scheduler.num_preemptions else ""


@torch.no_grad()
def _difference(model: Any, prompt: list[int], answer: Any) -> str:
    tokens = list(answer.token_ids)
    logits = plain_logits(model, torch.tensor([[*prompt, *tokens]]))[0].float()
    logits = logits[len(prompt) - 1 : -1]
    scale = float(logits.abs().max())
    # A token that the same model would have drawn, but for ties.
    gaps = logits.max(-1).values - logits[range(len(tokens)), tokens]
    if float(gaps.max()) > TIE * scale:
        return f"{tokens} after {len(prompt)} tokens is not greedy, by {float(gaps.max()):.2g}"
    expected = logits.log_softmax(-1)[range(len(tokens)), tokens]
    found = [step[token].logprob for step, token in zip(answer.logprobs, tokens, strict=True)]
    worst = float((expected - torch.tensor(found)).abs().max())
    return f"logprobs differ by {worst:.2g}" if worst > LOGPROBS else ""


@torch.no_grad()
def generated(model: Any, prompt: list[int]) -> list[int]:
    """What Transformers' own loop writes."""
    made = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return list(made[0, len(prompt) :].tolist())
