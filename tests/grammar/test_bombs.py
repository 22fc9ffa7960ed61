"""Bombs: each ends within its time, with its own error or as a grammar that can be followed."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.errors import GrammarFailed, InvalidGrammar
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.limits import GrammarLimits
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsParams
from tests.grammar.bombs import bombs
from tests.grammar.walking import Walker

BOMBS = bombs()


def patience() -> float:
    """Five seconds each is the promise; a machine that does other things as well gets some more."""
    return 5.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def stolen() -> list[float]:
    """Seconds since the start that a host kept each processor of this machine for others."""
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    ticks = [line.split()[8] for line in lines if re.match(r"cpu\d", line)]
    return [int(one) / os.sysconf("SC_CLK_TCK") for one in ticks]


def test_there_are_enough_bombs() -> None:
    assert len(BOMBS) >= 50


@pytest.fixture
def hasty(byte_bpe: Tokenizer, vocab_size: int, long_mode: bool) -> Iterator[GrammarCompiler]:
    """One that gives up sooner, for bombs that only time stops; not so with --long."""
    limits = GrammarLimits() if long_mode else GrammarLimits(compile_seconds=0.3)
    made = GrammarCompiler(
        byte_bpe, vocab_size=vocab_size, eos_ids=byte_bpe.eos_ids, num_lexers=2, limits=limits
    )
    yield made
    made.close()


def test_no_bomb_outlives_its_time(hasty: GrammarCompiler, walker: Walker) -> None:
    """One after the other, with the compiler and its child in the state the last one left."""
    hasty.warm_up().result()
    outcomes: dict[str, str] = {}
    slow: dict[str, float] = {}
    for name, params in BOMBS.items():
        started, before = time.monotonic(), stolen()
        try:
            grammar = hasty.compile(params)
            walker.walk(grammar.matcher(), 0, max_tokens=20)
            outcomes[name] = "followed"
        except (InvalidGrammar, GrammarFailed) as error:
            assert len(str(error)) < 700, name
            assert "panic" not in str(error), name
            outcomes[name] = type(error).__name__
        took = time.monotonic() - started
        took -= max(after - at for after, at in zip(stolen(), before, strict=True))
        if took > patience():
            slow[name] = took
        hasty.warm_up().result()  # a child that was killed comes back, on nobody's time
    assert slow == {}
    assert sum(outcome == "InvalidGrammar" for outcome in outcomes.values()) >= 30
    fine = hasty.compile(StructuredOutputsParams(choice=["yes", "no"]))
    assert walker.walk(fine.matcher(), 0).ended


def test_no_core_stays_busy_after_a_bomb_and_it_goes_off_once(compiler: GrammarCompiler) -> None:
    bomb = StructuredOutputsParams(json={"type": "integer", "multipleOf": 999_979})
    with pytest.raises(InvalidGrammar, match="takes more than 2 s"):
        compiler.compile(bomb)
    before = _used()
    time.sleep(0.5)
    with pytest.raises(InvalidGrammar, match="takes more than 2 s"):
        compiler.compile(bomb)
    assert _used() - before < 0.3


def _used() -> float:
    """Processor seconds of this process and of its living children."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    total = used.ru_utime + used.ru_stime
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    for child in children:
        fields = Path(f"/proc/{child}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def test_a_bomb_is_no_other_rows_problem(compiler: GrammarCompiler, walker: Walker) -> None:
    """Small grammars compile while a bomb is being tried."""
    bomb = compiler.submit(StructuredOutputsParams(json={"type": "integer", "multipleOf": 999_953}))
    for i in range(20):
        grammar = compiler.compile(StructuredOutputsParams(json={"const": f"beside a bomb {i}"}))
        assert walker.walk(grammar.matcher(), 0).ended
    with pytest.raises(InvalidGrammar):
        bomb.result()
