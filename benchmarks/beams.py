"""Beam search in the engine beside beams that are submitted again at every step.

    python benchmarks/beams.py --prompts 8 --length 64 --width 4 --tokens 32

The second way uses only `generate`: each step is a call with max_tokens=1 and logprobs=2 * width
for every beam, over the prefix cache, and the same rule chooses among the results. Both run in
turns of a few prompts, so that other load on the machine slows both, and both must find the same
answers. End tokens are ignored: every search takes the same number of steps.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.harness import Watched
from quire import LLM, BeamSearchParams, RequestOutput, SamplingParams
from quire.scheduler.beam_rule import BeamSearch, SearchRules

Texts = list[list[int]]


@dataclass
class Cost:
    """One way to search."""

    name: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of this process: what a busy machine does not change
    computed_tokens: int = 0

    def line(self, other: Cost) -> str:
        return (
            f"{self.name:<18} {self.seconds:8.2f} s ({self.seconds / other.seconds:5.2f}x)  "
            f"{self.cpu_seconds:8.2f} s of CPU ({self.cpu_seconds / other.cpu_seconds:5.2f}x)  "
            f"{self.computed_tokens:9,} tokens computed"
        )


def in_the_engine(llm: LLM, prompts: Sequence[list[int]], rules: SearchRules) -> list[Texts]:
    params = BeamSearchParams(rules.width, rules.max_tokens, True)
    found = llm.beam_search([{"prompt_token_ids": prompt} for prompt in prompts], params)
    return [[beam.output_token_ids for beam in output.sequences] for output in found]


def submitted_again(llm: LLM, prompts: Sequence[list[int]], rules: SearchRules) -> list[Texts]:
    """The same searches, each beam a new request at each step."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=2 * rules.width, ignore_eos=True)
    searches = [BeamSearch(rules) for _ in prompts]
    while not searches[0].over:
        beams = [
            [*prompt, *beam.token_ids().tolist()]
            for prompt, search in zip(prompts, searches, strict=True)
            for beam in search.beams
        ]
        outputs = iter(
            llm.generate([{"prompt_token_ids": ids} for ids in beams], params, use_tqdm=False)
        )
        for search in searches:
            offers = [_offer(next(outputs), 2 * rules.width) for _ in search.beams]
            tokens, logprobs = zip(*offers, strict=True)
            search.advance(np.array(tokens, np.int32), np.array(logprobs, np.float32))
    return [[a.beam.token_ids().tolist() for a in search.answers] for search in searches]


def _offer(output: RequestOutput, count: int) -> tuple[list[int], list[float]]:
    """The likeliest next tokens of a beam, best first."""
    positions = output.outputs[0].logprobs
    if positions is None or positions[0] is None:
        raise SystemExit("generate() gave no logprobs")
    best = sorted(positions[0].items(), key=lambda item: -item[1].logprob)[:count]
    return [token for token, _ in best], [entry.logprob for _, entry in best]


def make_prompts(count: int, length: int, vocab_size: int) -> list[list[int]]:
    rng = random.Random(count * 1000 + length)
    return [[rng.randrange(vocab_size) for _ in range(length)] for _ in range(count)]


def measure(llm: LLM, prompts: list[list[int]], rules: SearchRules, turn: int) -> list[Cost]:
    computed: list[int] = []
    engine = llm._session.engine
    executor: Any = Watched(engine.executor, lambda plan: computed.append(plan.num_tokens))
    engine.executor = executor
    costs = [Cost("in the engine"), Cost("submitted again")]
    ways = [in_the_engine, submitted_again]
    num_different = 0
    for way in ways:  # warm up
        way(llm, prompts[:turn], SearchRules(rules.width, 2))
    for begin in range(0, len(prompts), turn):
        some = prompts[begin : begin + turn]
        found = []
        for way, cost in zip(ways, costs, strict=True):
            llm.reset_prefix_cache()
            computed.clear()
            cpu = time.process_time()
            started = time.perf_counter()
            found.append(way(llm, some, rules))
            cost.seconds += time.perf_counter() - started
            cost.cpu_seconds += time.process_time() - cpu
            cost.computed_tokens += sum(computed)
        num_different += sum(a != b for a, b in zip(*found, strict=True))
    print(f"{num_different} of {len(prompts)} searches differ (near ties)", file=sys.stderr)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--turn", type=int, default=4, help="prompts searched in one go")
    parser.add_argument("--json", type=Path, help="write the figures there")
    asked = parser.parse_args()
    options = {} if asked.dtype is None else {"dtype": asked.dtype}
    rules = SearchRules(asked.width, asked.tokens)
    with LLM(asked.model, **options) as llm:
        vocab_size = llm.model_config.get_vocab_size()
        prompts = make_prompts(asked.prompts, asked.length, vocab_size)
        engine, again = measure(llm, prompts, rules, asked.turn)
    print(engine.line(engine))
    print(again.line(engine))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(engine), asdict(again)], indent=1))


if __name__ == "__main__":
    main()
