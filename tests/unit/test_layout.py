"""How folders and files are cut, and what tests must say."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

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
