"""What features of sampling cost on a GPU beside the same rows without them.

    python benchmarks/gpu_features.py --out features

    ratios   for each shape (random weights, bf16) and feature: seconds of 512 rows x 128 tokens
             over those without it, the best of three runs of each in turn; then of one row among
             512
    kernels  where the time of a decode step goes with some of them, kernel by kernel

Each part is written as it ends; parts for which `--seconds` leave no time are named and left out.
`--rows 4 --tokens 4 --tiny` tries the script without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import shapes
from benchmarks.gpu_profile import Clock
from benchmarks.harness import Budget

if TYPE_CHECKING:
    from quire import LLM

# Shapes by name: the default model's and that of 0.6B.
SHAPES: dict[str, dict[str, Any]] = {
    "135m": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "vocab_size": 49152,
    },
    "0.6b": json.loads((shapes.MODELS / "qwen3-0.6b.json").read_text()),
}
TINY = {**SHAPES["135m"], "hidden_size": 72, "num_hidden_layers": 1, "vocab_size": 512}
FEATURES: dict[str, dict[str, Any]] = {
    "logprobs 1": {"logprobs": 1},
    "logprobs 5": {"logprobs": 5},
    "logprobs 20": {"logprobs": 20},
    "repetition": {"repetition_penalty": 1.2},
    "presence, frequency": {"presence_penalty": 0.5, "frequency_penalty": 0.3},
    "bias": {"logit_bias": {7: 2.0, 300: -3.0}},
    "allowed ids": {"allowed_token_ids": list(range(3, 400))},
    "bad words": {"bad_words": ["abc", "hello there", "a b c d"]},
    "stop text": {"stop": ["\n\n\n", "end of the answer"], "detokenize": True},
    "min_tokens": {"min_tokens": 1, "stop_token_ids": [5, 9]},  # in truth: all of them
    "penalties, logprobs 5": {"repetition_penalty": 1.2, "logprobs": 5},
}


def banning(output_ids: list[int], logits: Any) -> Any:
    """A logits processor as people write them."""
    logits[7 + len(output_ids) % 100] = -float("inf")
    return logits


def forcing(output_ids: list[int], logits: Any) -> Any:
    """One by which every token is another."""
    logits[7 + len(output_ids) % 100] = 1e4
    return logits


PROCESSED = {"logits_processors": [banning]}
FORCED = {"logits_processors": [forcing]}
ALONE = ("logprobs 5", "repetition", "allowed ids")
PROFILED = ("plain", "logprobs 5", "allowed ids", *(f"one of all: {name}" for name in ALONE[:2]))
READ = "logprobs 5, all read"
PROMPT = 32


def prompts(count: int) -> list[dict[str, list[int]]]:
    return [
        {"prompt_token_ids": [(7 * i + 3 * j) % 500 for j in range(PROMPT)]} for i in range(count)
    ]


def seconds(llm: LLM, kinds: Sequence[dict[str, Any]], tokens: int, *, read: bool = False) -> float:
    """Of one run: a row for each kind; with `read` every logprob is looked at."""
    from quire import SamplingParams

    alike = {"temperature": 1.0, "max_tokens": tokens, "ignore_eos": True, "detokenize": False}
    params = [
        SamplingParams(**{**alike, **kind, "min_tokens": tokens if "min_tokens" in kind else 0})
        for kind in kinds
    ]
    before = time.perf_counter()
    done = llm.generate(prompts(len(kinds)), params, use_tqdm=False)
    if read:
        for one in done:
            for position in one.outputs[0].logprobs or ():
                assert position
    taken = time.perf_counter() - before
    # Nobody stops early, so that all runs are the same work.
    wanted = sum(one.max_tokens or 0 for one in params)
    assert sum(len(one.outputs[0].token_ids) for one in done) == wanted
    return taken


def in_turn(*works: Callable[[], float]) -> list[float]:
    """The least seconds of each, three runs in turn: a machine that is slower for a while is so for
    all of them."""
    return [min(runs) for runs in zip(*([work() for work in works] for _ in range(3)), strict=True)]


def ratios(shape: str, config: dict[str, Any], asked: argparse.Namespace, budget: Budget) -> None:
    import tempfile

    from quire import LLM

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        shapes.save_tokenizer(Path(folder), config["vocab_size"])
        seats = {"max_model_len": 512, "max_num_seqs": asked.rows}
        with LLM(folder, load_format="dummy", **seats) as llm:
            plain: list[dict[str, Any]] = [{}] * asked.rows
            for _ in range(2):  # kernels are compiled, graphs captured
                seconds(llm, plain, asked.tokens)
            clock = Clock(llm)
            cases = {name: [kind] * asked.rows for name, kind in FEATURES.items()}
            cases["plain"] = plain
            for name in ALONE:
                cases[f"one of all: {name}"] = [FEATURES[name], *[{}] * (asked.rows - 1)]
            # One that forces draws once in a plan, and goes on alone: a third of its tokens say
            # what it costs the others.
            for name, kind, most in (
                ("processor", PROCESSED, asked.tokens),
                ("processor, a third", PROCESSED, asked.tokens // 3),
                ("forcing", FORCED, asked.tokens),
                ("forcing, a third", FORCED, asked.tokens // 3),
            ):
                one = {**kind, "max_tokens": most}
                cases[f"one of all: {name}"] = [one, *[{}] * (asked.rows - 1)]
            cases[READ] = cases["logprobs 5"]
            cases["ten of all: processor"] = [PROCESSED] * 10 + [{}] * (asked.rows - 10)
            for name, kinds in cases.items():
                if asked.only and name not in asked.only:
                    continue
                if budget.left < 15:
                    print(f"{shape}, {name}: not begun, {budget.left:.0f} s left", flush=True)
                    continue
                seconds(llm, kinds, asked.tokens)  # as above
                clock.reset()
                seconds(llm, kinds, asked.tokens)
                said = clock.line()
                taken, beside = in_turn(
                    partial(seconds, llm, kinds, asked.tokens, read=name == READ),
                    partial(seconds, llm, plain, asked.tokens),
                )
                found[name] = taken / beside
                budget.write(f"ratios-{shape}", found)
                ratio = f"{found[name]:.3f} x plain ({taken:.3f} and {beside:.3f} s)"
                print(f"{shape}, {name}: {ratio}\n{said}", flush=True)
            if asked.kernels:
                kernels(llm, shape, cases, asked, budget)
    budget.write(f"ratios-{shape}", found)


def kernels(
    llm: LLM, shape: str, cases: dict[str, Any], asked: argparse.Namespace, budget: Budget
) -> None:
    """The second decode plan of some cases."""
    import torch

    from benchmarks.gpu_profile import profile_plan

    found: dict[str, Any] = {}
    for name in PROFILED if torch.cuda.is_available() else ():
        if budget.left < 10:
            return
        work = partial(seconds, llm, cases[name], asked.tokens)
        work()
        found[name] = profile_plan(
            llm, name, work, lambda plan: not plan.prefill and len(plan.decode) > 1, 2
        )
        budget.write(f"kernels-{shape}", found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="features")
    parser.add_argument("--seconds", type=float, default=230.0)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--only", nargs="+", default=[], help="features, by name")
    parser.add_argument("--shapes", nargs="+", default=[], choices=SHAPES)
    parser.add_argument("--kernels", action="store_true", help="profile some of them, too")
    parser.add_argument("--tiny", action="store_true", help="a model of toy size")
    asked = parser.parse_args()
    budget = Budget(asked.seconds, Path(asked.out))
    for name, config in ({"tiny": TINY} if asked.tiny else SHAPES).items():
        if not asked.shapes or name in asked.shapes:
            ratios(name, config, asked, budget)


if __name__ == "__main__":
    main()
