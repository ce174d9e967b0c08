"""How folders and files are cut, and what tests must say."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from support.modules import MODULES, PACKAGES, PRODUCT, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_MODULES = 12
FAMILIES = {
    "ext_proc/routing/policies": "policies behind `Policy`",
    "bench/suites": "suites of `tidegate bench`",
}
"""Folders of more than ``MAX_MODULES`` modules, each a family behind one interface."""


def test_a_folder_holds_one_idea() -> None:
    """No folder has more than a dozen modules, unless they are a family behind one interface."""
    counts: dict[str, int] = {}
    for path in MODULES.values():
        if path.name != "__init__.py":
            folder = path.parent.relative_to(ROOT).as_posix()
            counts[folder] = counts.get(folder, 0) + 1
    crowded = {folder for folder, count in counts.items() if count > MAX_MODULES}
    assert crowded == set(FAMILIES)


def test_a_class_name_has_one_meaning() -> None:
    """No two public classes of the product have one name, Protocols included."""
    homes: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        if module.split(".")[0] in (*PRODUCT, "tools"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in homes.items() if len(modules) > 1}


def test_protos_hold_schemas_only() -> None:
    """Generated code is in ``tidegate_api``, so a caller's folder ``protos`` hides nothing."""
    assert {path.suffix for path in (ROOT / "protos").rglob("*") if path.is_file()} == {".proto"}


def test_envoy_folder_is_no_package() -> None:
    """A package named envoy would shadow Envoy's generated messages."""
    assert not (ROOT / "envoy" / "__init__.py").exists()


def _functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions of a module, also those of its classes and conditions."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.If)):
            yield from _functions(node.body)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def test_every_test_says_what_it_holds() -> None:
    """Each test function has a docstring."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in _functions(ast.parse(path.read_text()).body)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert not wrong


TIMELESS = ("unit", "contract", "epp", "fuzz", "lab", "process")
"""Layers below soak whose tests assert nothing about elapsed time; virtual time excepted."""
VIRTUAL = {"tests/unit/test_support_time.py"}


class _Elapsed:
    """Finds assertions on elapsed time in a function, by what it calls a clock's difference.

    A deadline against a hang is none, and neither is the CPU time of a thread.
    """

    CLOCKS = frozenset({"monotonic", "perf_counter", "time", "monotonic_ns", "perf_counter_ns"})

    def __init__(self, function: ast.AST) -> None:
        self._moments: set[str] = set()
        self._spans: set[str] = set()
        nodes = [node for node in ast.walk(function) if isinstance(node, (ast.stmt, ast.expr))]
        self.lines: list[int] = []
        for node in sorted(nodes, key=lambda each: (each.lineno, each.col_offset)):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, node.value)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                if isinstance(owner, ast.Name) and any(map(self._is_span, node.args)):
                    self._spans.add(owner.id)  # as by `took.append`
            elif isinstance(node, ast.Assert) and self._is_span(node.test):
                self.lines.append(node.lineno)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for pair in zip(target.elts, value.elts, strict=False):
                self._assign(*pair)
        elif isinstance(target, ast.Name):
            if self._is_span(value):
                self._spans.add(target.id)
            elif self._is_moment(value):
                self._moments.add(target.id)

    def _is_moment(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._moments
        named = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        return named and not node.args and node.func.attr in self.CLOCKS

    def _is_span(self, node: ast.expr) -> bool:
        return any(
            (isinstance(each, ast.Name) and each.id in self._spans)
            or (
                isinstance(each, ast.BinOp)
                and isinstance(each.op, ast.Sub)
                and not isinstance(each.right, ast.Constant)
                and any(map(self._is_moment, (each.left, each.right)))
            )
            for each in ast.walk(node)
        )


def _lines_of_elapsed_time(source: str) -> list[int]:
    if not any(f".{clock}()" in source for clock in _Elapsed.CLOCKS):
        return []  # without the cost of parsing it
    return sorted(
        {
            line
            for node in ast.walk(ast.parse(source))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            for line in _Elapsed(node).lines
        }
    )


def test_no_assertion_below_soak_is_about_elapsed_time() -> None:
    """A busy machine would decide it: wait for an event or count, or move the clock."""
    wrong = [
        f"{name}:{line}"
        for layer in TIMELESS
        for path in sorted((ROOT / "tests" / layer).rglob("*.py"))
        if (name := path.relative_to(ROOT).as_posix()) not in VIRTUAL
        for line in _lines_of_elapsed_time(path.read_text())
    ]
    assert not wrong


@pytest.mark.parametrize(
    "text",
    [
        "began = time.monotonic()\n    assert time.monotonic() - began < 2",
        "began, n = loop.time(), 1\n    took = loop.time() - began\n    assert took > 2",
        "a = clock.perf_counter()\n    took.append(clock.time() - a)\n    assert min(took) < 2",
    ],
)
def test_an_assertion_on_elapsed_time_is_found(text: str) -> None:
    """Whether it is bounded from above or below, and whatever the times are kept in."""
    assert _lines_of_elapsed_time(f"def test_it():\n    {text}\n")


def test_a_limit_against_a_hang_is_no_assertion_on_time() -> None:
    """So tests may give up waiting, and say what they did not see."""
    text = "end = time.monotonic() + 60\n    while time.monotonic() < end:\n        pass\n"
    assert not _lines_of_elapsed_time(f"def test_it():\n    {text}    assert found\n")


def test_unit_tests_do_not_sleep() -> None:
    """Virtual time moves them on; what needs real time has a socket, and is no unit test."""
    wrong = [
        f"{name}:{node.lineno}"
        for path in sorted((ROOT / "tests" / "unit").rglob("*.py"))
        if (name := path.relative_to(ROOT).as_posix()) not in VIRTUAL
        and "sleep(" in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sleep"
        and not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    ]
    assert not wrong


def test_unit_and_contract_tests_mirror_the_modules() -> None:
    """Each folder of tests of a package exists as a folder of that package."""
    wrong = [
        folder.relative_to(ROOT).as_posix()
        for layer in (ROOT / "tests" / "unit", ROOT / "tests" / "contract")
        for package in (*PRODUCT, "tools")
        for folder in (layer / package).rglob("*")
        if folder.is_dir()
        and folder.name != "__pycache__"
        and any(folder.rglob("*.py"))
        and not (ROOT / folder.relative_to(layer)).is_dir()
    ]
    assert not wrong


def test_the_project_stands_alone() -> None:
    """No file names a path of a machine."""
    needles = ("/" + "work/", "/" + "root/", "/" + "home/")
    wrong = [
        f"{path.relative_to(ROOT)}: {needle}"
        for folder in (*PACKAGES, "protos", "tests", "docs", "models", "envoy", "deploy")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".md", ".yaml", ".yml", ".pbtxt", ".toml", ".proto"}
        for needle in needles
        if needle in path.read_text()
    ]
    assert not wrong
