"""Chat templates, compiled and rendered.

A template comes from a model's files, so it is not trusted: it runs in a sandbox that sees plain
data only, and is stopped if it takes too many steps or writes too much (`sandbox.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import nodes

from quire.base.boundary import refusing
from quire.errors import InvalidPrompt
from quire.inputs.quoting import Writer
from quire.inputs.sandbox import check_source, render, sandbox


class ChatTemplate:
    """One template, compiled.

    `takes_parts`: it loops over the parts of a message's content; else content is one string.
    `takes_text`: it accepts content that is one string. `takes_none`: it tests whether there is
    content. `names`: the variables that it reads or sets. `reads_calls`: it writes the tool calls
    that are in messages.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        with refusing(_does_not_compile):
            check_source(source)
            tree = sandbox().parse(source)
            self._template = sandbox().from_string(source)
            names = _names_of_content(tree)
            self.takes_parts = any(_is_content(f.iter, names) for f in tree.find_all(nodes.For))
            self.takes_none = any(
                test.name == "none" and _is_content(test.node, names)
                for test in tree.find_all(nodes.Test)
            )
            self.takes_text = not self.takes_parts or any(
                test.name == "string" for test in tree.find_all(nodes.Test)
            )
            self.names = {name.name for name in tree.find_all(nodes.Name)}
            self.reads_calls = any(
                "tool_calls" in (getattr(node, "attr", ""), getattr(node, "value", ""))
                for node in tree.find_all((nodes.Getattr, nodes.Const))
            )

    def render(self, variables: Mapping[str, Any], writer: Writer | None = None) -> str:
        """The text of a chat; every exception of the template becomes an InvalidPrompt."""
        with refusing(_refused):
            return render(self._template, variables, writer)


def _does_not_compile(why: str) -> InvalidPrompt:
    return InvalidPrompt(
        f"the chat template does not compile: {why}; mend it, or pass another one as "
        "chat_template=",
        parameter="chat_template",
    )


def _refused(why: str) -> InvalidPrompt:
    return InvalidPrompt(
        f"the chat template refused the messages: {why}; change them, or pass another "
        "chat_template=",
        parameter="messages",
    )


@lru_cache(maxsize=32)
def compile_template(source: str) -> ChatTemplate:
    return ChatTemplate(source)


def _names_of_content(tree: nodes.Template) -> frozenset[str]:
    """The names of a message's content in a template: "content", and variables set to it."""
    names = {"content"}
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, frozenset()):
            names.add(assign.target.name)
    return frozenset(names)


def _is_content(node: nodes.Node | None, names: frozenset[str]) -> bool:
    if isinstance(node, nodes.Filter):
        return _is_content(node.node, names)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names
