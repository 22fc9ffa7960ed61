"""Under limits that the process was started with: what fits them works, what does not says why."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.grammar.bombs import SCHEMAS

# Compiles in a process with hard limits of its own, as `ulimit` sets them, and prints what came
# of each: "" or the error.
SCRIPT = """
import json, resource, sys
from quire.errors import InvalidGrammar
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.limits import GrammarLimits
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsParams
from tests.grammar.conftest import NAMED
from tests.inputs.makers import train_byte_bpe

told = json.loads(sys.stdin.read())
tokenizer = Tokenizer(train_byte_bpe(digits=False), special_tokens=NAMED)
for name, value in told["limits"].items():
    resource.setrlimit(getattr(resource, name), (value, value))
compiler = GrammarCompiler(
    tokenizer,
    vocab_size=tokenizer.vocab_size,
    eos_ids=tokenizer.eos_ids,
    limits=GrammarLimits(**told["own"]),
)
for fields in told["grammars"]:
    try:
        compiler.compile(StructuredOutputsParams(**fields))
        print(json.dumps(""))
    except InvalidGrammar as error:
        print(json.dumps(str(error)))
compiler.close()
"""
GIB = 1 << 30
FINE = [{"regex": "[a-z]{3}"}, {"grammar": 'start: "a"+'}, {"regex": "[0-9]+x"}]


def errors_under(limits: dict[str, int], grammars: list[dict[str, Any]], **own: float) -> list[str]:
    told = json.dumps({"limits": limits, "grammars": grammars, "own": own})
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=told, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_regexes_and_grammars_work_under_hard_limits() -> None:
    assert errors_under({"RLIMIT_CPU": 60, "RLIMIT_AS": 2 * GIB}, FINE) == [""] * 3


def test_little_time_in_all_ends_the_child_and_no_grammar() -> None:
    """Less than one bomb may take, so that there is a new child for each grammar."""
    assert errors_under({"RLIMIT_CPU": 10}, FINE, compile_seconds=9.0) == [""] * 3


def test_a_limit_that_stands_in_the_way_is_named() -> None:
    hungry = {"json": SCHEMAS["long const"]}
    patience = {"compile_seconds": 30.0, "mask_seconds": 30.0, "wall_seconds": 60.0}
    refused, fine = errors_under({"RLIMIT_AS": 3 * GIB // 8}, [hungry, FINE[0]], **patience)
    assert "MiB that the limit of 384 MiB of address space (ulimit -v) leaves" in refused
    assert fine == ""
