"""Compiling the picker: what is chosen, and how its text is prepared."""

from __future__ import annotations

import ast
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from ext_proc.compiled import compiled
from ext_proc.exchange import machine
from tools.compiling import GROUP, LEFT_OUT, PACKAGES, chosen, is_current, prepare, quoted

ROOT = Path(__file__).resolve().parents[3]


def test_what_is_said_of_this_run_is_true():
    """It is compiled if, and only if, its modules are libraries."""
    assert compiled() == str(machine.__file__).endswith(tuple(EXTENSION_SUFFIXES))
    assert compiled() == bool(int(os.environ.get("TIDEGATE_COMPILED", "0")))


def test_the_way_of_a_request_is_chosen():
    """The machine and the policies are compiled; gRPC, and all that is left out, is not."""
    names = chosen(ROOT)
    assert "ext_proc/exchange/messages.py" in names
    assert "ext_proc/exchange/machine.py" in names
    assert "ext_proc/server/h2/frames.py" in names
    assert "ext_proc/server/h2/connection.py" not in names
    assert "ext_proc/routing/policies/auto.py" in names
    assert "ext_proc/server/service.py" not in names
    assert not LEFT_OUT & set(names)
    assert all((ROOT / name).is_file() for name in LEFT_OUT)


def test_no_public_dataclass_is_compiled():
    """Orjson would read memory that is not there; what has no leading underscore may reach it."""
    for name in chosen(ROOT):
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                marks = [ast.unparse(mark) for mark in node.decorator_list]
                assert not any("dataclass" in mark for mark in marks), f"{name}: {node.name}"


def test_types_of_named_tuples_are_quoted_where_they_stand():
    """Only those; every line stays in its place, whatever is in it."""
    text = (
        "class A(NamedTuple):\n"
        "    é: Sequence[int] = ()  # é\n"
        '    """Words: they stay."""\n'
        "    kind: Literal[\"a\"] = 'a'\n"
        "class B:\n"
        "    c: int\n"
    )
    assert quoted(text) == (
        "class A(NamedTuple):\n"
        '    é: "Sequence[int]" = ()  # é\n'
        '    """Words: they stay."""\n'
        "    kind: 'Literal[\"a\"]' = 'a'\n"
        "class B:\n"
        "    c: int\n"
    )


def test_a_type_over_two_lines_is_an_error():
    """Its line is named."""
    with pytest.raises(ValueError, match="line 2"):
        quoted("class A(NamedTuple):\n    b: dict[\n        str, int]\n")


def test_the_checkout_is_only_read(tmp_path):
    """The copy means the same as the source: only quotes around types differ."""
    prepare(ROOT, tmp_path)
    for name in chosen(ROOT):
        copy, source = (ast.parse((root / name).read_text()) for root in (tmp_path, ROOT))
        for node in ast.walk(copy):
            if isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Constant):
                node.annotation = ast.parse(str(node.annotation.value), mode="eval").body
        for node in ast.walk(source):
            if isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Constant):
                node.annotation = ast.parse(str(node.annotation.value), mode="eval").body
        assert ast.dump(copy) == ast.dump(source), name


def test_a_build_of_other_source_is_not_current(tmp_path):
    """It must not be measured as if it were this picker."""
    root, folder = tmp_path / "root", tmp_path / "build"
    for base in (root, folder):
        for package in PACKAGES:
            (base / package).mkdir(parents=True)
            (base / package / "a.py").write_text("A = 1\n")
    assert not is_current(root, folder)
    (folder / f"{GROUP}__mypyc.so").touch()
    assert is_current(root, folder)
    (root / PACKAGES[0] / "a.py").write_text("A = 2\n")
    assert not is_current(root, folder)
    (root / PACKAGES[0] / "a.py").write_text("A = 1\n")
    (root / PACKAGES[0] / "b.py").touch()
    assert not is_current(root, folder)


def test_no_coroutine_is_compiled() -> None:
    """Compiled modules have no coroutines (rule 5)."""
    wrong = [
        name
        for name in chosen(ROOT)
        for node in ast.walk(ast.parse((ROOT / name).read_text()))
        if isinstance(node, ast.AsyncFunctionDef)
    ]
    assert not wrong
