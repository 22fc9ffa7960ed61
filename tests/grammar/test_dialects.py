"""Any regex that our own automata follow means the same to llguidance and to Python.

Made-up regexes of everything that plain_regex.py may take: escaped punctuation, classes with odd
members, open counts, characters of one to four bytes. What one of the three reads otherwise must be
left to llguidance, or translated.
"""

from __future__ import annotations

import random
import re
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.errors import InvalidGrammar
from quire.grammar.automaton import automaton_of
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.plain_regex import read
from quire.grammar.regex import translated
from quire.grammar.regular import RegularMatcher
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsParams
from tests.grammar.test_regular import taken, walk

_LETTERS = "ab09 _-<>&~/\"'#@!%,;:=`é東😀\n\t\x7f\u2028"
_MEMBERS = ("a-c", "0-5", "é-ü", "東-語", " -/", r"\d", r"\]-a", r"\n-\r", *_LETTERS, *"$.*+?{}()|")
_COUNTS = ("", "", "", "*", "+", "?", "{2}", "{1,3}", "{,2}", "{0,}", "{0}", "{2,2}")

characters = st.sampled_from(_LETTERS) | st.sampled_from(
    [".", r"\d", r"\n", r"\t", r"\r", "]", "}"]
)
punctuation = st.sampled_from(string.punctuation + " ").map("\\{}".format)
members = st.lists(
    st.sampled_from(_MEMBERS) | punctuation, min_size=1, max_size=4, unique=True
).map("".join)
classes = st.tuples(st.sampled_from(["", "", "^"]), members).map("[{0[0]}{0[1]}]".format)
atoms = characters | punctuation | classes


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counted = st.tuples(inner, st.sampled_from(_COUNTS)).map("".join)
    joined = st.lists(counted, max_size=3).map("".join)
    either = st.lists(joined, min_size=1, max_size=3).map("|".join)
    return st.tuples(st.sampled_from(["(", "(?:"]), either).map(lambda pair: f"{pair[0]}{pair[1]})")


grouped = st.recursive(atoms, _grown, max_leaves=6)
regexes = st.lists(
    st.tuples(grouped, st.sampled_from(_COUNTS)).map("".join), min_size=1, max_size=4
).map("".join)


@pytest.mark.filterwarnings("ignore:Possible")  # Python's own word on [[a]
@settings(max_examples=60)
@given(regex=regexes, texts=st.lists(st.text("ab05_-<>&/é東😀\n\t ]", max_size=5), max_size=8))
@example(regex=r"^\s[a\d]$|[[&&b]", texts=["\xa0a", "\u20285", "[", " a\n"])
@example(regex=r"(?P<a>\x41)[\u00e9\S]", texts=["Aé", "A\xa0", "A\x1c"])
@example(regex=r"\<a\>", texts=["<a>", "a"])
@example(regex=r"[\<-\>]{,2}", texts=["<=", ""])
def test_a_regex_means_the_same_to_all_three(
    regex: str,
    texts: list[str],
    compiler: GrammarCompiler,
    vocab_size: int,
    byte_bpe: Tokenizer,
) -> None:
    part = read(translated(regex))
    automaton = None if part is None else automaton_of(part)
    if automaton is None:
        return
    for text in texts:
        assert taken(automaton, text) == (re.fullmatch(regex, text) is not None), (regex, text)
    try:
        grammar = compiler.compile(StructuredOutputsParams(regex=regex))
    except InvalidGrammar as error:
        assert "unsatisfiable" in str(error), (regex, str(error))
        return
    assert isinstance(grammar.matcher(), RegularMatcher) != automaton.ends[0], regex
    if automaton.ends[0]:  # nothing can follow
        return
    seed = random.Random(regex).randrange(1000)
    walk(grammar, vocab_size, frozenset(byte_bpe.eos_ids), seed)
