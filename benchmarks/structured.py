"""What structured outputs and logits processors cost, against rows that ask for neither.

    python benchmarks/structured.py --model smollm2 --rows 64 --json out.json

Three comparisons, each in one process with its runs taken in turn, so that a busy machine slows
both sides; the middle one of `--runs` counts.

  masks         answers in JSON with much free text, against free rows of the same lengths
  jump ahead    forms with long fixed parts, with forced tokens appended and with each drawn
  processors    free rows alone, and beside one processor that sleeps and one that raises
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import offline
from benchmarks.harness import median_ratio, parser_of

if TYPE_CHECKING:
    from quire import LLM, RequestOutput, SamplingParams

ANSWER = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 20, "maxLength": 60},
        "summary": {"type": "string", "minLength": 100, "maxLength": 240},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
        "year": {"type": "integer", "minimum": 1900, "maximum": 2030},
    },
    "required": ["title", "summary", "tags", "year"],
    "additionalProperties": False,
}
FORM = {
    "type": "object",
    "properties": {
        "document_identification_number": {"type": "integer", "minimum": 1, "maximum": 9999},
        "name_of_the_responsible_person": {"type": "string", "maxLength": 12},
        "terms_and_conditions": {"const": "The undersigned agrees to the terms as printed above."},
        "preferred_means_of_communication": {"enum": ["electronic mail", "letter", "telephone"]},
        "confirmation_of_receipt_required": {"type": "boolean"},
        "place_of_jurisdiction": {"const": "The courts of the place where the office is."},
    },
    "required": [
        *("document_identification_number", "name_of_the_responsible_person"),
        *("terms_and_conditions", "preferred_means_of_communication"),
        *("confirmation_of_receipt_required", "place_of_jurisdiction"),
    ],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Compared:
    """Two ways to do the same work; `ratio` is how many times the first one's time."""

    name: str
    first: str
    second: str
    first_seconds: tuple[float, ...]
    second_seconds: tuple[float, ...]
    tokens: int

    @property
    def ratio(self) -> float:
        return median_ratio(self.second_seconds, self.first_seconds)


def prompts(count: int) -> list[str]:
    return [
        f"Note {i}: describe a book about subject number {i * 7} in JSON.\n" for i in range(count)
    ]


def structured(schema: dict[str, Any], count: int) -> list[SamplingParams]:
    from quire import SamplingParams, StructuredOutputsParams

    shape = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    return [
        SamplingParams(temperature=0.8, seed=i, max_tokens=300, structured_outputs=shape)
        for i in range(count)
    ]


def free(outputs: Sequence[RequestOutput]) -> list[SamplingParams]:
    """Parameters for as many tokens as these outputs have."""
    from quire import SamplingParams

    return [
        SamplingParams(
            temperature=0.8, seed=i, max_tokens=len(o.outputs[0].token_ids), ignore_eos=True
        )
        for i, o in enumerate(outputs)
    ]


def run(llm: LLM, params: Sequence[SamplingParams]) -> tuple[float, list[RequestOutput]]:
    """Seconds of one batch, with an empty prefix cache."""
    llm.reset_prefix_cache()
    started = time.perf_counter()
    outputs = llm.generate(prompts(len(params)), list(params), use_tqdm=False)
    return time.perf_counter() - started, outputs


@contextmanager
def every_token_drawn() -> Iterator[None]:
    """Forced tokens are drawn like any other, under their masks."""
    from quire.grammar.matcher import GrammarMatcher

    forced = GrammarMatcher.forced
    GrammarMatcher.forced = lambda self: []  # type: ignore[method-assign]
    try:
        yield
    finally:
        GrammarMatcher.forced = forced  # type: ignore[method-assign]


def in_turn(
    runs: int, first: Callable[[], float], second: Callable[[], float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    first(), second()  # the first time compiles grammars and fills caches
    taken = [(first(), second()) for _ in range(runs)]
    ones, twos = zip(*taken, strict=True)
    return ones, twos


def measure_masks(llm: LLM, rows: int, runs: int) -> Compared:
    with every_token_drawn():
        _, outputs = run(llm, structured(ANSWER, rows))

        def masked() -> float:
            return run(llm, structured(ANSWER, rows))[0]

        same_lengths = free(outputs)
        ones, twos = in_turn(runs, lambda: run(llm, same_lengths)[0], masked)
    return Compared("masks", "free", "in JSON", ones, twos, count_tokens(outputs))


def measure_jump_ahead(llm: LLM, rows: int, runs: int) -> Compared:
    _, outputs = run(llm, structured(FORM, rows))

    def jumping() -> float:
        return run(llm, structured(FORM, rows))[0]

    def drawing() -> float:
        with every_token_drawn():
            return run(llm, structured(FORM, rows))[0]

    ones, twos = in_turn(runs, jumping, drawing)
    return Compared("jump ahead", "jumping", "drawing all", ones, twos, count_tokens(outputs))


def measure_processors(llm: LLM, rows: int, runs: int) -> Compared:
    """Until the last of `rows - 1` free rows has come."""
    from quire import SamplingParams

    plain = [SamplingParams(max_tokens=64, seed=i, ignore_eos=True) for i in range(rows - 1)]

    def sleeping(output_ids: list[int], logits: Any) -> Any:
        time.sleep(1.0)
        return logits

    def raising(output_ids: list[int], logits: Any) -> Any:
        raise RuntimeError("as it was made to")

    def free_rows(*more: SamplingParams) -> float:
        llm.reset_prefix_cache()
        left, asked = set(range(rows - 1)), [*plain, *more]
        started = time.perf_counter()
        for index, _ in llm.stream(prompts(len(asked)), asked):
            left.discard(index)
            if not left:
                break
        return time.perf_counter() - started

    slow = SamplingParams(max_tokens=64, ignore_eos=True, logits_processors=[sleeping])
    bad = SamplingParams(max_tokens=64, ignore_eos=True, logits_processors=[raising])
    ones, twos = in_turn(runs, free_rows, lambda: free_rows(slow, bad))
    return Compared("processors", "alone", "beside two", ones, twos, 64 * (rows - 1))


def count_tokens(outputs: Sequence[RequestOutput]) -> int:
    return sum(len(o.outputs[0].token_ids) for o in outputs)


MEASURES = {
    "masks": measure_masks,
    "jump_ahead": measure_jump_ahead,
    "processors": measure_processors,
}


def table(found: Sequence[Compared]) -> str:
    lines = [f"{'':<12} {'tokens':>7} {'first':>22} {'second':>22} {'second / first':>15}"]
    for one in found:
        sides = (
            f"{name} {statistics.median(seconds):.2f} s"
            for name, seconds in ((one.first, one.first_seconds), (one.second, one.second_seconds))
        )
        first, second = sides
        lines.append(
            f"{one.name:<12} {one.tokens:>7,} {first:>22} {second:>22} {one.ratio:>14.2f}x"
        )
    return "\n".join(lines)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=sorted(MEASURES), default=list(MEASURES))
    parser.add_argument("--json", type=Path, metavar="PATH")
    arguments = parser.parse_args(words)
    if arguments.rows < 2 or arguments.runs < 1:
        parser.error("--rows is at least 2 and --runs at least 1")
    return arguments


def main(words: Sequence[str] | None = None) -> list[Compared]:
    arguments = parse(words)

    from quire import LLM

    with LLM(arguments.model, max_num_seqs=max(arguments.rows + 1, 2)) as llm:
        found = [MEASURES[name](llm, arguments.rows, arguments.runs) for name in arguments.only]
    print(table(found))
    if arguments.json:
        report = {
            "model": arguments.model,
            "rows": arguments.rows,
            "machine": offline.machine(),
            "compared": [{**asdict(one), "ratio": one.ratio} for one in found],
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return found


if __name__ == "__main__":
    main()
