"""The speed gained by guessing tokens inside a GPU's decode steps, with random weights.

    python -m benchmarks.gpu_guesses --model qwen3-0.6b llama-3.1-8b --json out.json

Two engines of one shape in one process, one of which never guesses, run each workload in turn; the
median of `--runs` ratios counts. The text of a model with random weights cannot be guessed, which
is the first workload. For the second its embeddings and its head are replaced, so that after
each token one other is by far the likeliest, and a row goes on with the loop that its prompt ends
with: every layer still computes what it did, and all guesses are right.

  prose      random tokens at temperature 1
  copying    loops, greedy
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import shapes
from benchmarks.harness import median_ratio, parser_of

WORKLOADS = {"prose": 1.0, "copying": 0.0}  # their temperatures; prose first
LOOP = 40  # tokens
STRONG = 50.0  # embeddings, beside what all layers together add to them


@dataclass(frozen=True)
class Compared:
    """One workload on both engines: seconds, guesses, and how many answers were the same."""

    model: str
    name: str
    rows: int
    tokens: int
    plain_seconds: tuple[float, ...]
    guessing_seconds: tuple[float, ...]
    guessed: int
    accepted: int
    same: int

    @property
    def ratio(self) -> float:
        """How many times as fast with guesses."""
        return median_ratio(self.plain_seconds, self.guessing_seconds)


def run(llm: Any, rows: int, context: int, tokens: int, temperature: float) -> Any:
    """Seconds, and what was written."""
    from quire import SamplingParams

    rng = random.Random(rows)
    prompts = []
    for _ in range(rows):
        ids, first = [rng.randrange(1000, 90_000) for _ in range(context)], rng.randrange(2000)
        # A whole loop at its end, as the text to be copied stands in a prompt.
        ids[-LOOP:] = range(first * LOOP, (first + 1) * LOOP)
        prompts.append({"prompt_token_ids": ids})
    params = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=tokens, ignore_eos=True)
        for i in range(rows)
    ]
    llm.reset_prefix_cache()
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - started, [list(o.outputs[0].token_ids) for o in outputs]


def loop(llm: Any) -> None:
    """After token t by far the likeliest is the next one of its loop; of itself, where the head is
    the table of embeddings."""
    import torch

    model = llm._session.model
    spec, device, dtype = model.spec, model.facts.device, getattr(torch, model.config.dtype)
    made = torch.Generator(device=device).manual_seed(1)
    size = (spec.vocab_size, spec.hidden_size)
    table = torch.randn(size, generator=made, device=device, dtype=dtype)
    named = [("model.embed_tokens.weight", table * STRONG)]
    if not spec.tied_embeddings:
        token = torch.arange(spec.vocab_size, device=device)
        following = torch.where(token % LOOP == LOOP - 1, token - LOOP + 1, token + 1)
        head = torch.zeros_like(table)
        head[following.clamp_(max=spec.vocab_size - 1)] = table
        named.append(("lm_head.weight", head))
    llm._session.load_weights(named)


def compare(model: str, plain: Any, guessing: Any, name: str, given: tuple[Any, ...]) -> Compared:
    (rows, context, tokens, temperature), runs = given[:4], given[4]
    work = (rows, context, tokens, temperature)
    run(plain, *work), run(guessing, *work)  # what is captured is captured now
    before = guessing.llm_engine.speculation
    pairs = [(run(plain, *work), run(guessing, *work)) for _ in range(runs)]
    after = guessing.llm_engine.speculation
    (_, wanted), (_, got) = pairs[-1]
    return Compared(
        model,
        name,
        rows,
        rows * tokens,
        tuple(one[0] for one, _ in pairs),
        tuple(other[0] for _, other in pairs),
        (after.num_guessed - before.num_guessed) // runs,
        (after.num_accepted - before.num_accepted) // runs,
        sum(one == other for one, other in zip(wanted, got, strict=True)),
    )


def compare_model(name: str, arguments: argparse.Namespace) -> list[Compared]:
    from quire import LLM

    options = {
        "max_model_len": arguments.context + arguments.tokens + 64,
        "kv_cache_memory_bytes": 4 << 30,
        "batch_invariant": arguments.steady,
    }
    never, asked = {"num_speculative_tokens": 0}, {"method": "ngram"}
    found = []
    with shapes.opened(name, **options) as model:
        engines = [
            LLM(model.path, speculative_config=one, **model.options) for one in (never, asked)
        ]
        for workload in arguments.only:
            temperature = WORKLOADS[workload]
            if workload == "copying":
                for llm in engines:
                    loop(llm)
            for rows in arguments.rows:
                given = (rows, arguments.context, arguments.tokens, temperature, arguments.runs)
                found.append(compare(name, engines[0], engines[1], workload, given))
                print(line(found[-1]), flush=True)
        for llm in engines:
            llm.close()
    return found


def line(one: Compared) -> str:
    plain, guessing = map(statistics.median, (one.plain_seconds, one.guessing_seconds))
    return (
        f"{one.model:<14} {one.name:<8} {one.rows:>3} rows {one.tokens:>6,} tokens "
        f"{plain:.3f} s -> {guessing:.3f} s, {one.guessed:>6,} guessed {one.accepted:>6,} right, "
        f"{one.same} the same, {one.ratio:.2f}x"
    )


def main(words: Sequence[str] | None = None) -> list[Compared]:
    parser = parser_of(__doc__)
    parser.add_argument("--model", nargs="+", default=["qwen3-0.6b", "llama-3.1-8b"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--context", type=int, default=200, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=384, help="of each answer")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--steady", action="store_true", help="with batch_invariant=True")
    parser.add_argument("--json", type=Path, metavar="PATH")
    arguments = parser.parse_args(words)
    found = [one for name in arguments.model for one in compare_model(name, arguments)]
    if arguments.json:
        report = [{**asdict(one), "ratio": one.ratio} for one in found]
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return found


if __name__ == "__main__":
    main()
