"""Whatever a schema puts together: it is refused in words of ours, or what is written is valid and
the same by automaton and by llguidance, or, rarely, its row ends with GrammarFailed."""

from __future__ import annotations

from collections import Counter

from quire.errors import GrammarFailed, InvalidGrammar
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.regular import RegularMatcher
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsParams
from tests.grammar.test_everyday import judge
from tests.grammar.test_regular import walk
from tests.grammar.walking import Walker
from tests.grammar.wild import wild_schema


def test_wild_schemas_are_refused_or_fulfilled(
    compiler: GrammarCompiler,
    walker: Walker,
    byte_bpe: Tokenizer,
    vocab_size: int,
    long_mode: bool,
) -> None:
    ways = Counter[str]()
    num_schemas = 2000 if long_mode else 80
    for seed in range(num_schemas):
        schema = wild_schema(seed)
        params = StructuredOutputsParams(json=schema, disable_any_whitespace=seed % 2 == 0)
        try:
            grammar = compiler.compile(params)
        except InvalidGrammar as error:
            ways["refused"] += 1
            assert "fault of" not in str(error) and "at $ or below" not in str(error), seed
            continue
        grammar.prepare_walk()
        is_regular = isinstance(grammar.matcher(), RegularMatcher)
        ways["automaton" if is_regular else "mask"] += 1
        if is_regular:
            walk(grammar, vocab_size, frozenset(byte_bpe.eos_ids), seed)
        try:
            found = walker.walk(grammar.matcher(), seed, max_tokens=120, forcing=seed % 3 == 1)
        except GrammarFailed:  # parts that contradict each other may show it only when written
            ways["dead end"] += 1
            continue
        judge(schema, found)
    assert ways["automaton"] > num_schemas // 3 and ways["refused"] < num_schemas // 2, ways
    assert ways["mask"] > num_schemas // 20
    assert ways["dead end"] <= num_schemas // 200
