"""Regexes: what is written fully matches under Python's re, and what re refuses is refused."""

from __future__ import annotations

import re

import pytest

from quire.errors import InvalidGrammar
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.matcher import GrammarMatcher
from quire.grammar.regex import escaped, in_slashes, one_of, translated
from quire.params.structured import StructuredOutputsParams
from tests.grammar.regexes import REGEXES, random_regexes
from tests.grammar.walking import Walker


@pytest.mark.filterwarnings("ignore:Possible")  # Python's own word on [a&&b] and [[a]
@pytest.mark.parametrize("regex", REGEXES)
def test_what_is_written_matches(regex: str, compiler: GrammarCompiler, walker: Walker) -> None:
    if regex == "a{x":  # a brace that is a character to Python, and an error to Rust
        with pytest.raises(InvalidGrammar):
            compiler.compile(StructuredOutputsParams(regex=regex))
        return
    grammar = compiler.compile(StructuredOutputsParams(regex=regex))
    finished = 0
    for seed in range(6):
        walk = walker.walk(grammar.matcher(), seed, max_tokens=150, forcing=seed % 2 == 1)
        if walk.ended:
            finished += 1
            assert re.fullmatch(regex, walk.text), repr(walk.text)
    assert finished >= 3


@pytest.mark.parametrize("block", range(6))
def test_what_is_written_of_made_up_ones_matches(
    block: int, compiler: GrammarCompiler, walker: Walker
) -> None:
    finished = 0
    for regex in random_regexes(140)[block::6]:
        grammar = compiler.compile(StructuredOutputsParams(regex=regex))
        for seed in range(3):
            walk = walker.walk(grammar.matcher(), seed, max_tokens=150, forcing=seed == 1)
            if walk.ended:
                finished += 1
                assert re.fullmatch(regex, walk.text), f"{regex} wrote {walk.text!r}"
    assert finished >= 50


def test_there_are_enough_regexes() -> None:
    assert len({*REGEXES, *random_regexes(140)}) >= 200


@pytest.mark.parametrize(
    ("regex", "message"),
    [
        ("(?=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "backreferences are not supported"),
        ("a++", "a quantifier after a quantifier"),
        ("a{2}{3}", "a quantifier after a quantifier"),
        ("a**", "a quantifier after a quantifier"),
        ("(a", "unclosed group"),
        ("a)", "unopened group"),
        ("a(?#b", "a comment that is not closed"),
        ("[a", "a class that is not closed at character 0"),
        ("ab\\", "a backslash with nothing behind it at character 2"),
        ("*a", "repetition operator missing expression"),
        ("a{4,2}", "invalid repetition count range"),
        (r"\bword", r"'\b' and '\B' are not followed"),
        ("a^b", "'^' and '$' are followed at the ends"),
        (r"\p{Nonsense}", "Unicode property not found"),
        ("\ud800", "surrogate"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    regex: str, message: str, compiler: GrammarCompiler
) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        compiler.compile(StructuredOutputsParams(regex=regex))
    assert message in str(caught.value)
    assert caught.value.parameter == "regex"


def test_the_dialects_meet() -> None:
    assert translated("[a&&b]{,3}\\Z") == r"[a\&\&b]{0,3}\z"
    assert translated(r"\d\W") == r"[0-9][^_\p{L}\p{N}]"
    assert translated(r"[^\d\s]") == r"[^\p{Nd}\s\x1c-\x1f]"
    assert translated(r"[\d-z]") == r"[[0-9]-z]"
    assert translated(r"\d\w", ascii_classes=True) == "[0-9][_0-9A-Za-z]"
    # llguidance itself would take \D in a pattern for all but ASCII's digits.
    assert translated(r"\D\S", ascii_classes=True) == r"[^\p{Nd}][^\s\x1c-\x1f]"
    assert translated("[[:alpha:]x]") == "[[:alpha:]x]"
    assert translated("a(?#comment)+") == "a+"
    assert translated("a{,}") == "a{,}"
    assert in_slashes(r"a/b\/c\\/d") == r"/a\/b\/c\\\/d/"
    assert in_slashes("a\nb\\\nc") == r"/a\nb\nc/"
    assert escaped("a.b") == r"a\x{2e}b"
    assert one_of(["a", "b", "a"]) == "(?:a|b)"


def test_what_is_long_is_not_read_for_an_automaton(compiler: GrammarCompiler) -> None:
    """100,000 words were read for 15 s, and had too many states."""
    grammar = compiler.compile(StructuredOutputsParams(regex="a|" * 15_000 + "b"))
    assert isinstance(grammar.matcher(), GrammarMatcher)


@pytest.mark.parametrize(
    "choice",
    [
        ["yes", "no"],
        ["a", "ab", "abc"],
        ["a.b", "a|b", "(x)", "[y]", "\\d", "/", '"', "'"],
        ["日本", "日本語", "é", "🚀"],
        ["line\nbreak", "tab\t", " spaced "],
        ["one"],
        [f"option {i}" for i in range(500)],
    ],
)
def test_a_choice_is_made_exactly(
    choice: list[str], compiler: GrammarCompiler, walker: Walker
) -> None:
    grammar = compiler.compile(StructuredOutputsParams(choice=choice))
    walks = [walker.walk(grammar.matcher(), seed) for seed in range(60)]
    assert all(walk.ended for walk in walks)
    found = {walk.text for walk in walks}
    assert found <= set(choice)
    assert len(choice) > 8 or found == set(choice)
