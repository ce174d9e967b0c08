"""The syntax tree of a chat template: what is counted in it, and what it reads."""

from __future__ import annotations

from typing import cast

from jinja2 import nodes
from jinja2.visitor import NodeTransformer


class Counting(NodeTransformer):
    """Lets loops, literals and ``~`` go through the sandbox."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's interface
        """Count the turns of a loop."""
        self.generic_visit(node)
        chars = sum(len(each.data) for each in node.find_all(nodes.TemplateData))
        node.iter = _through("turns", cast("nodes.Expr", node.iter), nodes.Const(chars))
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802 - Jinja's interface
        """Bound what a list holds."""
        self.generic_visit(node)
        return node if _is_constant(node.items) else _through("sized", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802 - Jinja's interface
        """Bound what a tuple holds."""
        self.generic_visit(node)
        if node.ctx != "load" or _is_constant(node.items):
            return node
        return _through("sized", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802 - Jinja's interface
        """Bound what an object holds."""
        self.generic_visit(node)
        return node if not node.items else _through("sized", node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja's interface
        """Bound what texts together hold."""
        self.generic_visit(node)
        return _through("concatenated", *node.nodes)


def _through(method: str, *args: nodes.Expr) -> nodes.Expr:
    return nodes.Call(nodes.EnvironmentAttribute(method), list(args), [], None, None)


def _is_constant(items: list[nodes.Expr]) -> bool:
    return all(isinstance(each, nodes.Const) for each in items)


def reads_parts(template: nodes.Template) -> bool:
    """Return whether a template loops over a message's content, as vLLM 0.32 finds it."""
    macros = {macro.name: macro for macro in template.find_all(nodes.Macro)}
    given: dict[str, set[str]] = {name: set() for name in macros}
    for call in template.find_all(nodes.Call):
        macro = macros.get(call.node.name) if isinstance(call.node, nodes.Name) else None
        if macro is not None:
            names = [each.name for each in macro.args]
            passed = [*zip(names, call.args, strict=False)]
            passed += [(each.key, each.value) for each in call.kwargs]
            given[macro.name] |= {name for name, value in passed if _is_content(value)}
    inside: set[int] = set()
    for name, macro in macros.items():
        for loop in macro.find_all(nodes.For):
            inside.add(id(loop))
            if isinstance(loop.iter, nodes.Name) and loop.iter.name in given[name]:
                return True
    return any(
        _is_content(loop.iter)
        or (
            id(loop) not in inside
            and isinstance(loop.iter, nodes.Name)
            and loop.iter.name == "content"
        )
        for loop in template.find_all(nodes.For)
    )


def _is_content(node: nodes.Node | None) -> bool:
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content" and isinstance(node.node, nodes.Name)
    if isinstance(node, nodes.Getitem):
        return (
            isinstance(node.arg, nodes.Const)
            and node.arg.value == "content"
            and isinstance(node.node, nodes.Name)
        )
    return False
