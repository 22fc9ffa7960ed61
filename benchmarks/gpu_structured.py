"""What grammars cost on a GPU beside the same rows without one.

    python benchmarks/gpu_structured.py --out structured

The shape of the default model with random weights and a vocabulary of its size, made here: all
letters, pairs and triples of letters, and as many longer pieces as there is room for. Seconds per
token over those of free rows, the last of two runs. `--schemas 504` writes an answer to each of so
many schemas instead, and says which are not valid (if jsonschema is installed; otherwise
`--judge FILE` does so afterwards). `--rows 4 --tokens 4 --tiny` tries the script without a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu_features import SHAPES, TINY, prompts
from benchmarks.gpu_profile import Clock
from benchmarks.harness import Budget
from benchmarks.shapes import save_tokenizer

if TYPE_CHECKING:
    from quire import LLM

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
GRAMMARS: dict[str, dict[str, Any]] = {
    "regex [a-z ]+": {"regex": "[a-z ]+"},
    "regex of words": {"regex": "([a-z]+ ){40}[a-z]+"},
    "schema": {"json": SCHEMA},
    "regex [a-z ]{600}": {"regex": "[a-z ]{600}"},
}


def seconds_per_token(llm: LLM, kinds: Sequence[dict[str, Any] | None], tokens: int) -> float:
    from quire import SamplingParams, StructuredOutputsParams

    params = [
        SamplingParams(
            temperature=1.0,
            max_tokens=tokens,
            ignore_eos=True,
            structured_outputs=None if kind is None else StructuredOutputsParams(**kind),
        )
        for kind in kinds
    ]
    before = time.perf_counter()
    done = llm.generate(prompts(len(kinds)), params, use_tqdm=False)
    taken = time.perf_counter() - before
    errors = {str(one.error) for one in done if one.error is not None}
    assert not errors, errors
    return taken / sum(len(one.outputs[0].token_ids) for one in done)


def measured(llm: LLM, asked: argparse.Namespace, budget: Budget) -> None:
    free: list[dict[str, Any] | None] = [None] * asked.rows
    cases: dict[str, list[dict[str, Any] | None]] = {
        name: [kind] * asked.rows for name, kind in GRAMMARS.items()
    }
    cases["one schema of all"] = [GRAMMARS["schema"], *free[1:]]
    clock = Clock(llm)
    base = min(seconds_per_token(llm, free, asked.tokens) for _ in range(3))
    found: dict[str, float] = {"free, us a token": base * 1e6}
    print(f"free: {base * 1e6:.2f} us a token", flush=True)
    for name, kinds in cases.items():
        if budget.left < 20:
            print(f"{name}: not begun, {budget.left:.0f} s left", flush=True)
            continue
        seconds_per_token(llm, kinds, asked.tokens)
        clock.reset()
        found[name] = seconds_per_token(llm, kinds, asked.tokens) / base
        print(f"{name}: {found[name]:.2f} x free\n{clock.line()}", flush=True)
        budget.write("structured", found)


def answered(llm: LLM, asked: argparse.Namespace, budget: Budget) -> None:
    """One answer to each schema of the tests' corpus. Random weights would seldom close a string,
    so what closes something is made likelier."""
    from quire import SamplingParams, StructuredOutputsParams
    from tests.grammar.schemas import corpus

    closing = {llm.get_tokenizer().convert_tokens_to_ids(letter): 9.0 for letter in '"}],'}
    schemas = corpus(asked.schemas)
    params = [
        SamplingParams(
            temperature=1.5,
            max_tokens=400,
            seed=number,
            logit_bias=closing,
            structured_outputs=StructuredOutputsParams(json=schema),
        )
        for number, (_, schema) in enumerate(schemas)
    ]
    before = time.perf_counter()
    done = llm.generate(["answer "] * len(params), params, use_tqdm=False, on_error="return")
    print(f"{len(done)} answers in {time.perf_counter() - before:.1f} s", flush=True)
    answers = [one.outputs[0] for one in done]
    found = [
        (str(one.error or answers[i].finish_reason), answers[i].text) for i, one in enumerate(done)
    ]
    budget.write("schemas", found)
    if importlib.util.find_spec("jsonschema") is not None:
        judged(found)


def judged(found: list[tuple[str, str]]) -> None:
    """How many answers ended how, and which of those that ended are not valid."""
    from tests.grammar.schemas import corpus
    from tests.grammar.test_schemas import judge

    print(dict(Counter(end for end, _ in found)), flush=True)
    for (name, schema), (end, text) in zip(corpus(len(found)), found, strict=True):
        if end == "stop" and (
            errors := [e.message for e in judge(schema).iter_errors(json.loads(text))]
        ):
            print(f"{name} wrote {text!r}: {errors}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("structured"))
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--tiny", action="store_true", help="a model of toy size")
    parser.add_argument("--schemas", type=int, default=0, help="answer so many, and time nothing")
    parser.add_argument("--judge", type=Path, help="schemas.json of a run without jsonschema")
    asked = parser.parse_args()
    if asked.judge:
        return judged(json.loads(asked.judge.read_text()))
    from quire import LLM

    config = {**(TINY if asked.tiny else SHAPES["135m"]), "eos_token_id": 0}
    if asked.tiny:
        config["vocab_size"] = 2000
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        save_tokenizer(Path(folder), config["vocab_size"])
        options: dict[str, Any] = {"load_format": "dummy", "max_model_len": 512}
        with LLM(folder, max_num_seqs=asked.rows, **options) as llm:
            run = answered if asked.schemas else measured
            run(llm, asked, Budget(asked.seconds, asked.out))


if __name__ == "__main__":
    main()
