r"""Translates GBNF, llama.cpp's grammars, into the Lark that llguidance reads.

llguidance first cuts a text into lexemes and then parses these, and a lexeme takes as many
characters as it can. GBNF has only characters. So every regular part (a rule that does not refer
back to itself, or such a stretch inside a rule) becomes one terminal, a regex, and means the same.
Between two terminals of a recursive rule the longer match wins.

  root ::= "[" list? "]"             start: "[" (r1)? "]"
  list ::= item ("," root)*          r1: T2 ("," start)*
  item ::= [0-9]+ "x"?               T2: /[\x{30}-\x{39}]/+ "x"?
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from quire.errors import InvalidGrammar

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_HEX = {"x": 2, "u": 4, "U": 8}
_MAX_DEPTH = 100
_RULE = re.compile(r"[\w-]+\s*::=")


@dataclass(frozen=True, slots=True)
class Node:
    """A piece of a rule. `text` is Lark for a leaf, the rule's name for a reference, and the
    sign ("*", "{2,5}") for a repetition."""

    kind: str  # "leaf", "ref", "seq", "alt" or "repeat"
    text: str = ""
    parts: tuple[Node, ...] = ()


@dataclass(slots=True)
class _Rules:
    """The rules by name, in order, and the names of the regular ones."""

    bodies: dict[str, Node] = field(default_factory=dict)
    regular: set[str] = field(default_factory=set)

    def is_regular(self, node: Node) -> bool:
        if node.kind == "ref":
            return node.text in self.regular
        return all(self.is_regular(part) for part in node.parts)


def is_gbnf(grammar: str) -> bool:
    return "::=" in grammar


def gbnf_to_lark(grammar: str) -> str:
    """The same language in Lark; `root` becomes `start`."""
    bodies = _Parser(grammar).rules()
    for name in sorted({ref for body in bodies.values() for ref in _refs(body)}):
        if name not in bodies:
            raise InvalidGrammar(
                f"the grammar uses rule {name!r} and does not define it", parameter="grammar"
            )
    if "root" not in bodies:
        raise InvalidGrammar(
            "the grammar has no rule 'root', where a GBNF grammar begins", parameter="grammar"
        )
    rules = _Rules(bodies, _regular(bodies))
    return _Writer(rules).lark()


def _refs(node: Node) -> set[str]:
    found = {node.text} if node.kind == "ref" else set()
    return found.union(*(_refs(part) for part in node.parts))


def _regular(bodies: dict[str, Node]) -> set[str]:
    """Names of rules from which no path of references leads into a circle.

    Removes, again and again, rules whose references are all removed already.
    """
    waiting = {name: _refs(body) for name, body in bodies.items()}
    users: dict[str, list[str]] = {name: [] for name in bodies}
    for name, refs in waiting.items():
        for ref in refs:
            users[ref].append(name)
    ready = [name for name, refs in waiting.items() if not refs]
    done: set[str] = set()
    while ready:
        name = ready.pop()
        done.add(name)
        for user in users[name]:
            waiting[user].discard(name)
            if not waiting[user]:
                ready.append(user)
    return done


class _Writer:
    """Writes rules in lower case and terminals in upper case, as Lark requires."""

    def __init__(self, rules: _Rules) -> None:
        self._rules = rules
        self._names = {
            name: f"T{i}" if name in rules.regular else "start" if name == "root" else f"r{i}"
            for i, name in enumerate(rules.bodies)
        }
        self._lines: list[str] = []

    def lark(self) -> str:
        if "root" in self._rules.regular:
            self._lines.append(f"start: {self._names['root']}")
        for name, body in self._rules.bodies.items():
            regular = name in self._rules.regular
            text = self._regular_text(body) if regular else self._rule_text(body)
            self._lines.append(f"{self._names[name]}: {text}")
        return "\n".join(self._lines) + "\n"

    def _regular_text(self, node: Node) -> str:
        return self._text(node, self._regular_text)

    def _rule_text(self, node: Node) -> str:
        """The Lark of a node inside a rule; regular stretches become terminals."""
        if node.kind == "leaf" or (node.kind != "ref" and self._rules.is_regular(node)):
            return node.text if node.kind == "leaf" else self._terminal(node)
        if node.kind != "seq":
            return self._text(node, self._rule_text)
        pieces: list[str] = []
        stretch: list[Node] = []
        for part in (*node.parts, None):
            if part is not None and self._rules.is_regular(part):
                stretch.append(part)
                continue
            if len(stretch) == 1:
                pieces.append(self._rule_text(stretch[0]))
            elif stretch:
                pieces.append(self._terminal(Node("seq", parts=tuple(stretch))))
            stretch = []
            if part is not None:
                pieces.append(self._rule_text(part))
        return " ".join(pieces)

    def _terminal(self, node: Node) -> str:
        name = f"X{len(self._lines)}"
        self._lines.append(f"{name}: {self._regular_text(node)}")
        return name

    def _text(self, node: Node, inner: Callable[[Node], str]) -> str:
        if node.kind == "ref":
            return self._names[node.text]
        if node.kind == "leaf":
            return node.text
        parts = [inner(part) for part in node.parts]
        if node.kind == "repeat":
            return f"({parts[0]}){node.text}"
        if node.kind == "seq":
            return " ".join(parts) or '""'
        return f"({' | '.join(parts)})" if len(parts) > 1 else parts[0]


class _Parser:
    def __init__(self, grammar: str) -> None:
        self._text, self._at, self._depth = grammar, 0, 0

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self._skip()
        while self._at < len(self._text):
            name = self._name()
            self._skip()
            if not self._take("::="):
                self._fail("'::=' after a rule's name")
            self._skip()
            if name in found:
                self._fail(f"only one rule {name!r}, this is the second")
            found[name] = self._alternatives()
            if self._at < len(self._text) and not self._begins_a_rule():
                self._fail("a literal, a class, a rule, '(', '|', or the next rule with '::='")
        return found

    def _fail(self, expected: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        near = self._text[self._at : self._at + 20]
        raise InvalidGrammar(
            f"line {line} of the grammar: expected {expected}, found {near!r}", parameter="grammar"
        )

    def _take(self, token: str) -> bool:
        found = self._text.startswith(token, self._at)
        self._at += len(token) if found else 0
        return found

    def _begins_a_rule(self) -> bool:
        return _RULE.match(self._text, self._at) is not None

    def _skip(self) -> None:
        while self._at < len(self._text):
            if self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif self._text[self._at] in " \t\r\n":
                self._at += 1
            else:
                return

    def _name(self) -> str:
        start = self._at
        while self._at < len(self._text) and self._is_word(self._text[self._at]):
            self._at += 1
        if start == self._at:
            self._fail("the name of a rule")
        return self._text[start : self._at]

    @staticmethod
    def _is_word(char: str) -> bool:
        return char.isalnum() or char in "-_"

    def _alternatives(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Node("alt", parts=tuple(options))

    def _sequence(self) -> Node:
        """A sequence may span several lines; it ends where the next rule begins."""
        parts: list[Node] = []
        self._skip()
        while (part := self._item()) is not None:
            self._skip()
            parts.append(self._repeated(part))
            self._skip()
        return parts[0] if len(parts) == 1 else Node("seq", parts=tuple(parts))

    def _item(self) -> Node | None:
        here = self._text[self._at : self._at + 1]
        if here == '"':
            return self._literal()
        if here == "[":
            return self._class()
        if here == "(":
            return self._group()
        if self._take("."):
            return Node("leaf", r"/[^\n]/")
        if not here or not self._is_word(here) or self._begins_a_rule():
            return None
        return Node("ref", self._name())

    def _group(self) -> Node:
        self._take("(")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail(f"at most {_MAX_DEPTH} brackets within brackets")
        inner = self._alternatives()
        if not self._take(")"):
            self._fail("')'")
        self._depth -= 1
        return inner

    def _repeated(self, part: Node) -> Node:
        for sign in "*+?":
            if self._take(sign):
                return Node("repeat", sign, (part,))
        if not self._take("{"):
            return part
        end = self._text.find("}", self._at, self._at + 40)
        low, comma, high = self._text[self._at : max(end, self._at)].partition(",")
        low, high = low.strip() or "0", high.strip()
        if end < 0 or not all(n.isascii() and n.isdigit() for n in (low, high) if n):
            self._fail("a count such as {3}, {2,} or {2,5}")
        self._at = end + 1
        return Node("repeat", f"{{{low},{high if comma else low}}}", (part,))

    def _literal(self) -> Node:
        self._take('"')
        chars: list[str] = []
        while not self._take('"'):
            chars.append(self._char())
        return Node("leaf", json.dumps("".join(chars), ensure_ascii=False))

    def _class(self) -> Node:
        self._take("[")
        spelled = ["[^" if self._take("^") else "["]
        first = True
        while first or not self._take("]"):
            first = False
            low = self._char()
            spelled.append(rf"\x{{{ord(low):x}}}")
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._take("-")
                spelled.append(rf"-\x{{{ord(self._char()):x}}}")
        return Node("leaf", f"/{''.join(spelled)}]/")

    def _char(self) -> str:
        """One character of a literal or a class, unescaped."""
        if self._at >= len(self._text) or self._text[self._at] == "\n":
            self._fail("the end of a literal or class on the line where it begins")
        here = self._text[self._at]
        self._at += 1
        if here != "\\":
            return here
        letter = self._text[self._at : self._at + 1]
        self._at += 1
        if letter in _HEX:
            digits = self._text[self._at : self._at + _HEX[letter]]
            try:
                code = chr(int(digits, 16))
            except (ValueError, OverflowError):
                self._fail(f"{_HEX[letter]} hexadecimal digits of a character")
            self._at += _HEX[letter]
            return code
        if letter in _ESCAPES:
            return _ESCAPES[letter]
        if letter and letter in '"\\[]^-/':
            return letter
        self._fail("an escape such as \\n, \\x0A, \\u000A or \\\\")
