"""The default model, hot and small, held to schemas, regexes and choices.

At temperature 1.5 it writes nonsense, and the grammar alone makes it valid. A row may be cut by
max_tokens; those are counted and shown. A tenth of it runs in the gate, of schemas a
twentieth; all with --long.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from quire.errors import QuireError
from tests.grammar.regexes import REGEXES, random_regexes
from tests.grammar.schemas import corpus
from tests.grammar.test_grammars import GRAMMARS
from tests.grammar.test_schemas import judge

SEEDS = 3  # with --long; one in the gate
MAX_TOKENS, FEWER = 512, 160  # where nothing but chance ends an answer, most of the time


@pytest.fixture(scope="module")
def llm(default_model: Path) -> Iterator[LLM]:
    with LLM(str(default_model), max_num_seqs=64) as made:
        yield made


def written(
    llm: LLM,
    constraints: list[StructuredOutputsParams],
    seeds: int,
    max_tokens: int = MAX_TOKENS,
) -> list[tuple[int, RequestOutput]]:
    """(index of the constraint, output) for every seed, all in one batch."""
    which = [i for i in range(len(constraints)) for _ in range(seeds)]
    params = [
        SamplingParams(
            temperature=1.5,
            max_tokens=max_tokens,
            seed=number,
            structured_outputs=constraints[i],
        )
        for number, i in enumerate(which)
    ]
    prompts = ["Here is what you asked for:\n"] * len(params)
    outputs = llm.generate(prompts, params, use_tqdm=False, on_error="return")
    return list(zip(which, outputs, strict=True))


def report(name: str, outputs: list[RequestOutput], seconds: float) -> Counter[str]:
    """How the rows ended; shown with -s and in the long run."""
    ends = Counter(str(o.outputs[0].finish_reason) for o in outputs)
    tokens = sum(len(o.outputs[0].token_ids) for o in outputs)
    print(
        f"\n{name}: {len(outputs)} rows, {tokens:,} tokens, {seconds:.0f} s, ended by {dict(ends)}"
    )
    return ends


def test_every_finished_schema_is_valid(llm: LLM, long_mode: bool) -> None:
    schemas = corpus() if long_mode else corpus(504)[::36]
    started = time.perf_counter()
    constraints = [StructuredOutputsParams(json=schema) for _, schema in schemas]
    seeds, most = (SEEDS, MAX_TOKENS) if long_mode else (1, FEWER)
    rows = written(llm, constraints, seeds, most)
    ends = report("schemas", [output for _, output in rows], time.perf_counter() - started)
    for i, output in rows:
        name, schema = schemas[i]
        answer = output.outputs[0]
        if answer.finish_reason == "stop":
            errors = [e.message for e in judge(schema).iter_errors(json.loads(answer.text))]
            assert errors == [], f"{name} wrote {answer.text!r}"
        elif answer.finish_reason == "length":
            assert answer.stop_reason == "unfinished_structured_output"
            assert len(answer.token_ids) == most
        else:
            assert isinstance(output.error, QuireError), name
    assert ends["stop"] >= 0.8 * len(rows)


def test_every_finished_regex_matches(llm: LLM, long_mode: bool) -> None:
    regexes = [r for r in (*REGEXES, *random_regexes(140)) if r != "a{x"]
    assert len(set(regexes)) >= 200
    some = regexes if long_mode else regexes[::10]
    started = time.perf_counter()
    # Where a + or a * lets it go on, nothing but chance ends it; few tokens are enough to see.
    rows = written(llm, [StructuredOutputsParams(regex=r) for r in some], 1, max_tokens=60)
    ends = report("regexes", [output for _, output in rows], time.perf_counter() - started)
    for i, output in rows:
        assert output.error is None, some[i]
        if output.outputs[0].finish_reason == "stop":
            assert matches(some[i], output.outputs[0].text)
    assert ends["stop"] >= 0.5 * len(rows)


def matches(regex: str, text: str) -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Python's own word on [a&&b] and [[a]
        return re.fullmatch(regex, text)


def test_every_finished_grammar_is_followed(llm: LLM, long_mode: bool) -> None:
    grammars = list(GRAMMARS.items()) if long_mode else list(GRAMMARS.items())[::10]
    constraints = [StructuredOutputsParams(grammar=text) for _, (text, _) in grammars]
    rows = written(llm, constraints, 1, max_tokens=60)
    ends = report("grammars", [output for _, output in rows], 0.0)
    for i, output in rows:
        name, (_, judged) = grammars[i]
        # One that can be read in very many ways may be more work than is allowed; it says so.
        assert output.error is None or isinstance(output.error, QuireError), name
        if output.outputs[0].finish_reason == "stop":
            assert judged(output.outputs[0].text), name
    assert ends["error"] <= 2
    assert ends["stop"] >= 0.4 * len(rows)


def test_every_choice_is_one_of_its_list(llm: LLM, long_mode: bool) -> None:
    lists = [
        ["yes", "no"],
        ["positive", "negative", "neutral"],
        ["A", "B", "C", "D"],
        ["New York", "New Jersey", "Newcastle upon Tyne"],
        ["東京", "大阪", "Straße", "naïve café", "🚀 up"],
        ['with "quotes"', "back\\slash", "new\nline", " leading space", "(brackets)*+?"],
        [str(n) for n in range(200)],
    ]
    rows = written(llm, [StructuredOutputsParams(choice=c) for c in lists], 10 if long_mode else 2)
    found: dict[int, set[str]] = {}
    for i, output in rows:
        assert output.outputs[0].finish_reason == "stop"
        assert output.outputs[0].text in lists[i]
        found.setdefault(i, set()).add(output.outputs[0].text)
    assert sum(map(len, found.values())) > len(lists), "not always the same one"
