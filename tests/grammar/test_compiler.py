"""GrammarCompiler: once per content, off the caller's thread, within its bytes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from quire.errors import InvalidGrammar
from quire.grammar import compiler as compiler_module
from quire.grammar.compiled import CompiledGrammar
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.limits import MIB, GrammarLimits
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import GuidedDecodingParams, StructuredOutputsParams
from tests.grammar.walking import Walker, allowed_ids

ROOT = Path(__file__).resolve().parent.parent.parent


def small(tokenizer: Tokenizer, **limits: int) -> GrammarCompiler:
    return GrammarCompiler(
        tokenizer,
        vocab_size=tokenizer.vocab_size,
        eos_ids=tokenizer.eos_ids,
        limits=GrammarLimits(**limits),
    )


def test_equal_content_is_compiled_once(
    byte_bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    threads: set[str] = set()

    class Counted(CompiledGrammar):
        def __init__(self, kind: str, text: str, *rest: object, **more: object) -> None:
            compiled.append(text)
            threads.add(threading.current_thread().name)
            super().__init__(kind, text, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(compiler_module, "CompiledGrammar", Counted)
    made = small(byte_bpe)
    futures = [made.submit(StructuredOutputsParams(json={"const": i % 5})) for i in range(50)]
    assert len({id(future.result()) for future in futures}) == 5
    assert len(compiled) == 5
    assert threading.current_thread().name not in threads
    # What changes the texts allowed is another grammar; what does not is the same.
    made.compile(StructuredOutputsParams(json={"const": 1}, disable_any_whitespace=True))
    made.compile(StructuredOutputsParams(json={"const": 1}, whitespace_pattern=" ?"))
    made.compile(StructuredOutputsParams(choice=["1"]))
    assert len(compiled) == 8
    made.compile(StructuredOutputsParams(choice=["1"], disable_any_whitespace=True))
    made.compile(GuidedDecodingParams(json={"const": 1}, backend="guidance"))
    assert len(compiled) == 8
    made.close()


def test_the_cache_keeps_within_its_bytes(byte_bpe: Tokenizer, long_mode: bool) -> None:
    """Unique schemas, one after the other; what they hold is also seen from outside."""
    cap = 8 * MIB
    made = small(byte_bpe, cache_bytes=cap)
    made.compile(StructuredOutputsParams(json={"const": "first"}))
    before = _resident()
    for start in range(0, 10_000 if long_mode else 2_000, 100):
        futures = [
            made.submit(StructuredOutputsParams(json={"const": i, "title": "x" * 50}))
            for i in range(start, start + 100)
        ]
        for future in futures:
            future.result()
        assert made.num_bytes <= cap
    assert 20 < made.num_kept < 200
    assert _resident() - before < 8 * cap
    made.close()


def _resident() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_the_least_recently_asked_for_goes_first(byte_bpe: Tokenizer) -> None:
    made = small(byte_bpe, cache_bytes=4 * MIB)
    kept = made.compile(StructuredOutputsParams(choice=["stays"]))
    gone = made.compile(StructuredOutputsParams(choice=["goes"]))
    for i in range(200):
        made.compile(StructuredOutputsParams(choice=[f"filler {i}"]))
        assert made.compile(StructuredOutputsParams(choice=["stays"])) is kept
    assert made.compile(StructuredOutputsParams(choice=["goes"])) is not gone
    made.close()


def test_use_counts_for_the_bytes(byte_bpe: Tokenizer, walker: Walker, vocab_size: int) -> None:
    made = GrammarCompiler(byte_bpe, vocab_size=vocab_size, eos_ids=byte_bpe.eos_ids)
    grammar = made.compile(StructuredOutputsParams(regex="([a-z]{1,9} ){1,9}"))
    before = grammar.num_bytes
    for seed in range(5):
        walker.walk(grammar.matcher(), seed)
    assert grammar.num_bytes > before
    made.close()


def test_many_rows_get_several_lexers(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(StructuredOutputsParams(regex="many rows [0-9]"))
    assert len({grammar.llguidance_matcher().share for _ in range(12)}) == 2


def test_errors_come_with_the_future(compiler: GrammarCompiler) -> None:
    future = compiler.submit(StructuredOutputsParams(json={"type": "strin"}))
    error = future.exception()
    assert isinstance(error, InvalidGrammar)
    assert isinstance(error.at(7), InvalidGrammar)
    assert str(error.at(7)).startswith("prompt 7: json: invalid keyword 'type' at $")


def test_a_model_without_an_end_token_is_refused(byte_bpe: Tokenizer) -> None:
    made = GrammarCompiler(byte_bpe, vocab_size=byte_bpe.vocab_size, eos_ids=())
    with pytest.raises(InvalidGrammar, match="a token that ends a text"):
        made.compile(StructuredOutputsParams(choice=["a"]))
    made.close()


def test_a_pydantic_model_is_a_schema(compiler: GrammarCompiler, walker: Walker) -> None:
    from pydantic import BaseModel

    class Answer(BaseModel):
        yes: bool
        count: int

    params = StructuredOutputsParams(json=Answer.model_json_schema())
    Answer.model_validate_json(walker.walk(compiler.compile(params).matcher(), 1).text)
    params.json = Answer  # type: ignore[assignment]
    assert compiler.compile(params) is compiler.compile(params)


def test_llguidance_comes_with_the_first_grammar_only() -> None:
    code = (
        "import sys, quire.grammar.compiler, quire.grammar.masks;"
        "print(sorted({'llguidance', 'torch', 'transformers'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("padding", [0, 1, 31, 32, 500])
def test_any_padding_of_the_vocabulary_works(byte_bpe: Tokenizer, padding: int) -> None:
    size = byte_bpe.vocab_size + padding
    made = GrammarCompiler(byte_bpe, vocab_size=size, eos_ids=byte_bpe.eos_ids)
    matcher = made.compile(StructuredOutputsParams(regex="[ab]")).matcher()
    assert set(allowed_ids(matcher, size).tolist()) == {
        byte_bpe.backend.token_to_id(c) for c in "ab"
    }
    made.close()


def test_a_vocabulary_that_is_smaller_than_its_tokenizers_works(byte_bpe: Tokenizer) -> None:
    size = byte_bpe.vocab_size - 100
    made = GrammarCompiler(byte_bpe, vocab_size=size, eos_ids=byte_bpe.eos_ids)
    ids = allowed_ids(made.compile(StructuredOutputsParams(regex="(?s).+")).matcher(), size)
    assert 256 <= len(ids) <= size
    made.close()


def test_closing_twice_is_fine_and_the_child_ends(byte_bpe: Tokenizer) -> None:
    made = small(byte_bpe)
    made.compile(StructuredOutputsParams(regex="a"))
    opened = made._opened
    assert opened is not None
    child = opened.trial._child
    assert child is not None
    made.close()
    made.close()
    assert not child.is_alive()
