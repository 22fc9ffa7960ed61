"""What scoring continuations costs beside computing their contexts.

    python benchmarks/scoring.py --contexts 200 --length 300 --choices 4 --tokens 3 25

Contexts of random tokens are computed alone (one greedy token each), then with continuations, in
turns of a few contexts each, so that a machine that is slow for a while is slow for all. The
prefix cache is emptied between turns. Beside seconds it counts computed tokens and operations.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import Watched
from quire import LLM, SamplingParams
from quire.spec import AnySpec
from quire.step import StepPlan

TURN = 50  # contexts computed in one go


@dataclass
class Cost:
    """One way to run the contexts."""

    continuation_tokens: int  # 0: the contexts alone
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of all threads: what other programs on the machine cost little of
    computed_tokens: int = 0
    operations: int = 0

    def line(self, alone: Cost) -> str:
        what = "contexts alone"
        if self.continuation_tokens:
            what = f"continuations of {self.continuation_tokens}"
        more_tokens = self.computed_tokens / alone.computed_tokens
        return (
            f"{what:<20} {self.seconds:8.2f} s ({self.seconds / alone.seconds:5.3f}x)  "
            f"{self.cpu_seconds:8.2f} s CPU ({self.cpu_seconds / alone.cpu_seconds:5.3f}x)  "
            f"{self.computed_tokens:9,} tokens ({more_tokens:5.3f}x)  "
            f"{self.operations / 1e12:7.3f} T operations "
            f"({self.operations / alone.operations:5.3f}x)"
        )


def operations(plan: StepPlan, spec: AnySpec) -> int:
    """Multiplications and additions of a plan: weights, attention, and logits that are read."""
    context, lines = 0, len(plan.decode) * plan.repeat
    for one in plan.prefill:
        length = len(one.token_ids)
        context += length * one.start + length * (length + 1) // 2
        drawn = {len(one.token_ids) - 1} if one.sample_into else set()
        scored = set() if one.targets is None else set(one.targets.offsets.tolist())
        lines += len(drawn | scored)
    context += int((plan.decode.positions + 1).sum()) * plan.repeat
    return spec.flops(tokens=plan.num_tokens, context=context, sampled=lines)


def measure(llm: LLM, arguments: argparse.Namespace) -> list[Cost]:
    """Every way to run the contexts, in turns."""
    rng = random.Random(arguments.seed)
    spec = llm._session.model.spec
    cost = Cost(0)

    def count(plan: StepPlan) -> None:
        cost.computed_tokens += plan.num_tokens
        cost.operations += operations(plan, spec)

    executor: Any = Watched(llm._session.model.executor, count)
    llm._session.engine.executor = executor

    def ids(count: int) -> list[int]:
        return [rng.randrange(spec.vocab_size) for _ in range(count)]

    costs = [Cost(0), *(Cost(tokens) for tokens in arguments.tokens)]
    warm = [ids(arguments.length) for _ in range(2)]
    llm.score_continuations(warm, [[ids(3), ids(3)]] * 2, use_tqdm=False)
    for first in range(0, arguments.contexts, TURN):
        contexts = [ids(arguments.length) for _ in range(min(TURN, arguments.contexts - first))]
        for cost in costs:
            choices = [[ids(cost.continuation_tokens) for _ in range(arguments.choices)]
                       for _ in contexts]  # fmt: skip
            llm.reset_prefix_cache()
            begin, cpu = time.perf_counter(), time.process_time()
            if cost.continuation_tokens:
                llm.score_continuations(contexts, choices, use_tqdm=False)
            else:
                params = SamplingParams(temperature=0, max_tokens=1)
                llm.generate(contexts, params, use_tqdm=False)
            cost.seconds += time.perf_counter() - begin
            cost.cpu_seconds += time.process_time() - cpu
    return costs


def main(given: list[str] | None = None) -> list[Cost]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--contexts", type=int, default=200)
    parser.add_argument("--length", type=int, default=300)
    parser.add_argument("--choices", type=int, default=4)
    parser.add_argument("--tokens", type=int, nargs="+", default=[3, 25])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args(given)
    with LLM(arguments.model, dtype=arguments.dtype, skip_tokenizer_init=True) as llm:
        costs = measure(llm, arguments)
    for cost in costs:
        print(json.dumps(asdict(cost)) if arguments.json else cost.line(costs[0]))
    return costs


if __name__ == "__main__":
    main()
