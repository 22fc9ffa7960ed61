"""Lark and GBNF grammars: what is written is judged by a second, slower way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from quire.grammar.compiler import GrammarCompiler
from quire.grammar.gbnf import gbnf_to_lark, is_gbnf
from quire.params.structured import StructuredOutputsParams
from tests.grammar.made_up import made_up_grammars
from tests.grammar.walking import Walker

Judge = Callable[[str], bool]


def balanced(text: str) -> bool:
    depth = 0
    for char in text:
        depth += 1 if char == "(" else -1
        if depth < 0:
            return False
    return depth == 0


def sums(text: str) -> bool:
    """A sum of products of numbers and brackets, judged by a descent of its own."""
    at = 0

    def operand() -> bool:
        nonlocal at
        if text[at : at + 1] == "(":
            at += 1
            if not expression() or text[at : at + 1] != ")":
                return False
            at += 1
            return True
        start = at
        while text[at : at + 1].isdigit():
            at += 1
        return at > start

    def expression() -> bool:
        nonlocal at
        if not operand():
            return False
        while text[at : at + 1] and text[at] in "+*":
            at += 1
            if not operand():
                return False
        return True

    return expression() and at == len(text)


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def matches(regex: str) -> Judge:
    return lambda text: re.fullmatch(regex, text, re.DOTALL) is not None


JSON_GBNF = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws  # as llama.cpp's
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""

GRAMMARS: dict[str, tuple[str, Judge]] = {
    "literal": ('start: "hello"', matches("hello")),
    "alternatives": ('start: "a" | "bb" | "c" "d"', matches("a|bb|cd")),
    "repetition": ('start: "ab"{2,4}', matches("(ab){2,4}")),
    "terminal": ("start: WORD\nWORD: /[a-z]{1,5}/", matches("[a-z]{1,5}")),
    "brackets": ('start: b\nb: ("(" b ")")*', balanced),
    "sums": ('start: e\ne: o (/[+*]/ o)*\no: N | "(" e ")"\nN: /[0-9]{1,3}/', sums),
    "ignored": ('start: "a" "b"\n%ignore / /', matches(" *a *b *")),
    "json inside": (
        'start: "<j>" %json {"type": "integer", "minimum": 1, "maximum": 20} "</j>"',
        matches("<j>(1?[0-9]|20)</j>"),
    ),
    "lines": ("start: line{1,3}\nline: /[a-z]{1,4}/ NL\nNL: /\\n/", matches("([a-z]{1,4}\n){1,3}")),
    "and not": ("start: A\nA: /[ab]{1,4}/ & ~/a+/", matches("(?!a+$)[ab]{1,4}")),
    "comments": ('// a note\nstart: "x" # another\n', matches("x")),
    "empty": ('start: ("a")?', matches("a?")),
    "left recursion": ('start: l\nl: l "," "x" | "x"', matches("x(,x)*")),
    "gbnf literal": ('root ::= "hello"', matches("hello")),
    "gbnf regular": ('root ::= word "ing" " "? \nword ::= [a-z]{1,4}', matches("[a-z]{1,4}ing ?")),
    "gbnf escapes": (
        r'root ::= "\x41\u00e9\n\t\"\\" [\x30-\x32\]]',
        matches('Aé\n\t"\\\\[0-2\\]]'),
    ),
    "gbnf negated": (r'root ::= [^a-y0-9\n]{1,3} "."', matches("[^a-y0-9\n]{1,3}[.]")),
    "gbnf any": ('root ::= . . "x"', matches("[^\n][^\n]x")),
    "gbnf brackets": ('root ::= ("(" root ")")*', balanced),
    "gbnf sums": (
        'root ::= o ([+*] o)*\no ::= num | "(" root ")"\nnum ::= [0-9] [0-9]?',
        sums,
    ),
    "gbnf counts": ('root ::= "a"{2} "b"{1,} "c"{,2} "d"{0,1}', matches("aab+c{0,2}d?")),
    "gbnf lines": (
        'root ::= "a" b # over lines\n  | "c"\n    b\n | (\n "d"\n )\n\nb\n  ::= "x"\n  | "y"',
        matches("a[xy]|c[xy]|d"),
    ),
    "gbnf json": (JSON_GBNF, is_json),
    "gbnf empty": ('root ::= "a" ( "b" | ) "c"', matches("ab?c")),
    "gbnf names": (
        'root ::= Sub-rule_1 sub-Rule\nSub-rule_1 ::= "x"\nsub-Rule ::= "y"',
        matches("xy"),
    ),
    "gbnf chess": (
        r"""root ::= "1. " move " " move "\n" ([1-9] "." " " move " " move "\n")+
move ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?""",
        matches(r"1\. (\S+ \S+\n)([1-9]\. \S+ \S+\n)+"),
    ),
}


GRAMMARS |= {name: (text, matches(meant)) for name, (text, meant) in made_up_grammars(30).items()}


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_is_written_belongs_to_the_grammar(
    name: str, compiler: GrammarCompiler, walker: Walker
) -> None:
    text, judge = GRAMMARS[name]
    grammar = compiler.compile(StructuredOutputsParams(grammar=text))
    finished = 0
    for seed in range(8):
        walk = walker.walk(grammar.matcher(), seed, max_tokens=200, forcing=seed % 2 == 1)
        if walk.ended:
            finished += 1
            assert judge(walk.text), repr(walk.text)
    assert finished >= 2


def test_there_are_enough_grammars() -> None:
    assert len(GRAMMARS) >= 50


def test_a_token_can_be_asked_for(compiler: GrammarCompiler, walker: Walker) -> None:
    grammar = compiler.compile(StructuredOutputsParams(grammar='start: "a" <|im_end|> "b"'))
    assert walker.walk(grammar.matcher(), 0).text == "a<|im_end|>b"


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("", "non-empty"),
        ("start: missing", "missing"),
        ('begin: "a"', "start"),
        ("start: (", "grammar: "),
        ("start: <|nope|>", "nope"),
        ("start: A\nA: A", "circular"),
        ('root ::= "a', "line 1 of the grammar: expected the end of a literal"),
        ('main ::= "a"', "no rule 'root'"),
        ("root ::= other", "uses rule 'other' and does not define it"),
        ('root ::= "a"\nroot ::= "b"', "only one rule 'root'"),
        ('root ::= "a"\n\nx = "b"', "line 3 of the grammar: expected a literal, a class"),
        ('root ::= ("a"', "expected ')'"),
        ('root ::= "a"{x}', "a count such as {3}"),
        (r'root ::= "\q"', "an escape such as"),
        (r'root ::= "\xZZ"', "2 hexadecimal digits"),
        ("root ::= [a-", "the end of a literal or class"),
        ("root ::= " + "(" * 200 + '"a"' + ")" * 200, "at most 100 brackets"),
        ("root ::= !", "a literal, a class"),
    ],
)
def test_a_broken_grammar_is_refused(grammar: str, message: str, compiler: GrammarCompiler) -> None:
    with pytest.raises(ValueError) as caught:
        compiler.compile(StructuredOutputsParams(grammar=grammar))
    assert message in str(caught.value)


def test_gbnf_is_told_from_lark_and_its_regular_parts_become_terminals() -> None:
    assert is_gbnf('root ::= "a"')
    assert not is_gbnf('start: "a"')
    lark = gbnf_to_lark('root ::= "[" list? "]"\nlist ::= item ("," root)*\nitem ::= [0-9]+ "x"?')
    assert lark.splitlines() == [
        'start: "[" (r1)? "]"',
        'r1: T2 ("," start)*',
        r'T2: (/[\x{30}-\x{39}]/)+ ("x")?',
    ]


def test_reading_gbnf_takes_linear_time() -> None:
    """Twice the grammar, twice the steps: counted as calls, so that no clock is asked."""
    import sys

    def calls(size: int) -> int:
        text = "root ::= " + " ".join(f"r{i}" for i in range(size)) + "\n"
        text += "\n".join(f'r{i} ::= "x{i}" [a-z]+ | r{(i + 1) % size}' for i in range(size))
        count = 0

        def count_calls(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(count_calls)
        try:
            gbnf_to_lark(text)
        finally:
            sys.setprofile(None)
        return count

    small, large = calls(200), calls(400)
    assert large < 2.5 * small
