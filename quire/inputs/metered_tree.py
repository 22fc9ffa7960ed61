"""A template's tree, changed so that what it does is counted.

  {{ a }}            one call that makes text of it, sizes first
  a + b + c          one call that adds them, sizes first
  a ~ b              one call that joins them
  a[1:]              one call that cuts
  a[b], {b: c}       b looked at first
  a == b             with both looked at first, unless one is written out: a list that holds another
                     twice, and so on for forty levels, takes for ever to compare
  for x in y         y counted, and a step at the beginning of the body
  macros, blocks     a step at the beginning of the body

Only what the template says is changed this way, not what it means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

# Names that a template cannot write as a filter: they hold a space.
STEP, ADD, JOIN, CUT, EACH, LOOKED_AT, WRITE, WRITE_TWO, WRITE_THREE, WRITE_SUM = (
    f"metered {word}"
    for word in (
        *("step", "add", "join", "cut", "each", "operand", "write"),
        *("write two", "write three", "write sum"),
    )
)
_SMALL = (nodes.Const, nodes.Compare, nodes.Test, nodes.Not)  # all but the first are true or false
_OWN_STEP = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)


def metered(tree: nodes.Template) -> nodes.Template:
    """The same template, counted; the tree given is changed."""
    changed: nodes.Template = _Metering().visit(tree)
    return changed


class _Metering(NodeTransformer):
    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802 - Jinja's names
        node.nodes = [self._written(each) for each in node.nodes]
        return node

    def _written(self, node: nodes.Expr) -> nodes.Expr:
        if isinstance(node, nodes.TemplateData):
            return node
        if isinstance(node, nodes.Const) and isinstance(node.value, str):
            return nodes.TemplateData(node.value, lineno=node.lineno)
        if isinstance(node, nodes.Concat):
            joined: nodes.Expr = self.visit(node)
            return joined
        if isinstance(node, nodes.Add):
            total = self._sum(WRITE_SUM, node)
            total.name = {1: WRITE_TWO, 2: WRITE_THREE}.get(len(total.args), WRITE_SUM)
            return total
        return _call(WRITE, [self.visit(node)], node)

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802
        return self._sum(ADD, node)

    def _sum(self, name: str, node: nodes.Add) -> nodes.Filter:
        parts: list[nodes.Expr] = []
        rest: nodes.Expr = node
        while isinstance(rest, nodes.Add):
            parts.append(rest.right)
            rest = rest.left
        return _call(name, [self.visit(part) for part in (rest, *reversed(parts))], node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        return _call(JOIN, [self.visit(part) for part in node.nodes], node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        cut = node.arg
        if not isinstance(cut, nodes.Slice):
            if not isinstance(cut, _SMALL):
                node.arg = _call(LOOKED_AT, [cut], node)
            return node
        none = nodes.Const(None, lineno=node.lineno)
        ends = [none if end is None else end for end in (cut.start, cut.stop, cut.step)]
        return _call(CUT, [node.node, *ends], node)

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.key, _SMALL):
            node.key = _call(LOOKED_AT, [node.key], node)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        operands = [node.expr, *(operand.expr for operand in node.ops)]
        if sum(not _is_written_out(operand) for operand in operands) > 1:
            node.expr = _call(LOOKED_AT, [node.expr], node)
            for operand in node.ops:
                operand.expr = _call(LOOKED_AT, [operand.expr], node)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        weight = _step(node.body, node)
        chosen = None if node.test is None else _count([node.test], node)
        self.generic_visit(node)
        node.iter = _call(EACH, [node.iter], node)
        node.body.insert(0, weight)
        if chosen is not None and node.test is not None:  # a step gives None: "None or test"
            node.test = nodes.Or(chosen, node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: Any) -> nodes.Node:  # noqa: N802
        weight = _step(node.body, node)
        self.generic_visit(node)
        node.body.insert(0, weight)
        changed: nodes.Node = node
        return changed

    visit_CallBlock = visit_Macro  # noqa: N815
    visit_Block = visit_Macro  # noqa: N815


def _call(name: str, arguments: Sequence[Any], at: nodes.Node) -> nodes.Filter:
    first, *others = arguments
    return nodes.Filter(first, name, others, [], None, None, lineno=at.lineno)


def _is_written_out(node: nodes.Expr) -> bool:
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(isinstance(item, nodes.Const) for item in node.items)
    return isinstance(node, _SMALL)


def _step(body: Sequence[nodes.Node], at: nodes.Node) -> nodes.ExprStmt:
    return nodes.ExprStmt(_count(body, at), lineno=at.lineno)


def _count(body: Sequence[nodes.Node], at: nodes.Node) -> nodes.Filter:
    """What counts one run of a body: its nodes, and the characters it writes as they are."""
    num_nodes, num_characters = 1, 0
    waiting: list[nodes.Node] = list(body)
    while waiting:
        node = waiting.pop()
        num_nodes += 1
        if isinstance(node, nodes.TemplateData):
            num_characters += len(node.data)
        elif isinstance(node, nodes.Const) and isinstance(node.value, str):
            num_characters += len(node.value)
        if not isinstance(node, _OWN_STEP):
            waiting.extend(node.iter_child_nodes())
    amounts = [nodes.Const(n, lineno=at.lineno) for n in (num_nodes, num_characters)]
    return _call(STEP, amounts, at)
