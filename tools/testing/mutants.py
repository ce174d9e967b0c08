"""Changes a package one place at a time, and says which of its tests notice each change.

A changed place is a *mutant*, and a test that fails with it *kills* it::

    python -m tools.testing.mutants xds_server/protocol                   # a score, some minutes
    python -m tools.testing.mutants ext_proc/exchange --sample 300 --seed 2
    python -m tools.testing.mutants xds_server/fleet --all-tests --record build/fleet.json

The tests are ``tests/unit/PACKAGE``, or those that ``--tests`` names. Rules:

1. Mutants are of the bodies of functions: another comparison, operator, condition, number
   or name, ``None`` in place of what is returned, a statement, argument or member left out. Some
   change nothing that can be seen, so no score is 100 %; scores are compared with each other.
2. Tests are collected once. Each mutant has a process of its own, a fork in which the function has
   the changed code, and in which the tests run that reach its line, the quickest first, until one
   fails or what is left would take longer than ``BUDGET_S``. With ``--all-tests`` they go on until
   ``ENOUGH`` have failed.
3. ``--record`` writes the mutants with their killers, the seconds of tests and the lines that they
   reach. With ``--all-tests`` it has *spare* tests too: those without which each mutant still has
   a killer and each line a test. Properties and tests of security are never among them. They are
   proposals: of two tests that notice the same, keep the one that states the rule.
4. The same sample and seed give the same mutants of the same code.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import inspect
import json
import math
import os
import random
import select
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
ENOUGH: Final = 4
"""Killers of a mutant after which no more are looked for."""
BUDGET_S: Final = 4.0
"""How long tests run against one mutant, by what they take without it."""
BOUND_S: Final = 20.0
"""A test that takes longer hangs, which kills the mutant."""
EVERY: Final = 50
"""Mutants between two lines that say how far it is."""
OTHERS: Final[Mapping[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


class Function(NamedTuple):
    """Where a function begins, which tells it from all others."""

    file: str
    name: str
    first: int
    """Its first line, that of a decorator where it has one."""


class Mutant(NamedTuple):
    """A changed place."""

    function: Function
    line: int
    change: str
    number: int
    """Which of its file's."""


class _Places(ast.NodeTransformer):
    """Counts the places of a module that can be changed, and changes one of them."""

    def __init__(self, file: str, chosen: int | None = None) -> None:
        self.file = file
        self.chosen = chosen
        self.found: list[Mutant] = []
        self._function: Function | None = None

    def _changes(self, node: Any, change: str) -> bool:
        """Count a place; return whether it is the one to change."""
        if self._function is None:
            return False
        number = len(self.found)
        self.found.append(Mutant(self._function, node.lineno, change, number))
        return number == self.chosen

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, FUNCTIONS):
            return self._def(node)
        if isinstance(node, ast.stmt) and self._left_out(node):
            return ast.copy_location(ast.Pass(), node)
        self.generic_visit(node)
        return self._changed(node)

    def _def(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        """Visit a function's body, and not its defaults, which are made but once."""
        outer = self._function
        if outer is None:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            self._function = Function(self.file, node.name, first)
        node.body = [self.visit(each) for each in node.body]
        self._function = outer
        return node

    def _left_out(self, node: ast.stmt) -> bool:
        match node:
            case ast.Expr(value=ast.Constant()):
                return False
            case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Raise():
                pass
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                pass
            case _:
                return False
        return self._changes(node, f"without `{ast.unparse(node)}`"[:100])

    def _changed(self, node: Any) -> Any:
        for change, name, value in (*_other_values(node), *_less(node)):
            if self._changes(node, change[:100]):
                setattr(node, name, value)
        return node


_Change = tuple[str, str, object]
"""What it is, a field of a node, and its new value."""


def _other_values(node: ast.AST) -> Iterator[_Change]:
    """Yield changes of an operator or a constant."""
    match node:
        case ast.Compare(ops=[op]) if other := OTHERS.get(type(op)):
            yield f"{type(op).__name__} becomes {other.__name__}", "ops", [other()]
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op) if other := OTHERS.get(
            type(op)
        ):
            yield f"{type(op).__name__} becomes {other.__name__}", "op", other()
        case ast.Constant(value=bool() as value):
            yield f"{value} becomes {not value}", "value", not value
        case ast.Constant(value=int() | float() as value):
            yield f"{value} becomes {value + 1}", "value", value + 1
        case ast.Constant(value=str() as text) if text.isidentifier():
            yield f"{text!r} becomes another text", "value", f"{text}?"


def _less(node: ast.AST) -> Iterator[_Change]:
    """Yield changes by which less is done or returned."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            negated = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
            yield f"not ({ast.unparse(test)})", "test", negated
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            nothing = ast.copy_location(ast.Constant(None), value)
            yield f"returns None, not {ast.unparse(value)}", "value", nothing
        case ast.Set(elts=[_, _, *_]) | ast.List(elts=[_, _, *_], ctx=ast.Load()):
            yield "without its last member", "elts", node.elts[:-1]
        case ast.Call(keywords=[*_, ast.keyword(arg=str() as name)]):
            yield f"without the argument {name}", "keywords", node.keywords[:-1]


def mutants_of(file: Path) -> list[Mutant]:
    """Return all mutants of a module."""
    places = _Places(str(file))
    places.visit(ast.parse(file.read_text("utf-8")))
    return places.found


def code_of(mutant: Mutant) -> CodeType:
    """Compile a mutant, and return the code of the function that it changes."""
    file = mutant.function.file
    tree = ast.parse(Path(file).read_text("utf-8"))
    _Places(file, mutant.number).visit(tree)
    ast.fix_missing_locations(tree)
    (found,) = (
        code
        for code in _codes(compile(tree, file, "exec", dont_inherit=True))
        if (code.co_name, code.co_firstlineno) == (mutant.function.name, mutant.function.first)
    )
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the codes in a code, those of functions without what is in them."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            if not each.co_flags & 1:  # a class's body: functions have CO_OPTIMIZED
                yield from _codes(each)


def sample(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return some of the mutants in a random order."""
    return random.Random(seed).sample(mutants, min(count, len(mutants)))  # noqa: S311 - a sample


def interval(killed: int, of: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    if not of:
        return 0.0, 1.0
    z, share = 1.96, killed / of
    middle, wide = (
        share + z * z / (2 * of),
        z * math.sqrt(share * (1 - share) / of + (z / of / 2) ** 2),
    )
    return (middle - wide) / (1 + z * z / of), (middle + wide) / (1 + z * z / of)


def spare(lengths: Mapping[str, int], needs: Iterable[Iterable[str]]) -> list[str]:
    """Return tests that can go, the longest first, while each need keeps one that meets it.

    Args:
        lengths: The lines of each test that may go.
        needs: The tests that kill a mutant or reach a line, for each of these.
    """
    left = [set(each) for each in needs if each]
    of: dict[str, list[set[str]]] = defaultdict(list)
    for need in left:
        for test in need:
            of[test].append(need)
    gone = []
    for test in sorted(lengths, key=lambda each: (-lengths[each], each)):
        if all(len(need) > 1 for need in of[test]):
            gone.append(test)
            for need in of[test]:
                need.discard(test)
    return gone


class MutantRuns:
    """The pytest plugin that runs tests with mutants in place of tests."""

    def __init__(
        self,
        mutants: Sequence[Mutant],
        enough: int,
        bound_s: float,
        say: Callable[[str], None],
        *,
        properties: bool = True,
    ) -> None:
        self.mutants = mutants
        self.enough = enough
        self._properties = properties
        self._until = time.monotonic() + bound_s
        self.seconds: dict[str, float] = {}
        self.reach: dict[tuple[str, int], list[int]] = {}
        self.ends: list[tuple[Mutant, list[str] | None]] = []
        """Mutants and their killers, or `None` where no code could be put in place."""
        self.lengths: dict[str, int] = {}
        self._items: list[pytest.Item] = []
        self._failed = False
        self._say = say

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that the test which runs has failed."""
        self._failed = self._failed or report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests as they are, then some with each mutant."""
        self._items = [each for each in session.items if self._properties or _is_example(each)]
        sound = self._as_they_are()
        functions: dict[Function, list[FunctionType]] = defaultdict(list)
        gc.unfreeze()  # what tests/conftest.py has frozen would be missing
        for each in gc.get_objects():
            if type(each) is FunctionType:
                code = each.__code__
                place = Function(code.co_filename, code.co_name, code.co_firstlineno)
                functions[place].append(each)
        for number, mutant in enumerate(self.mutants):
            if time.monotonic() > self._until:
                break
            killers = self._killers(mutant, functions[mutant.function], sound)
            self.ends.append((mutant, killers))
            if number % EVERY == EVERY - 1:
                killed, of = self.score()
                self._say(f"{number + 1} of {len(self.mutants)} mutants: {killed} of {of} killed")
        return True

    def score(self) -> tuple[int, int]:
        """Return how many mutants were killed, and of how many."""
        ends = [killers for _, killers in self.ends if killers is not None]
        return sum(map(bool, ends)), len(ends)

    def _as_they_are(self) -> set[int]:
        """Run all tests; learn their seconds and what they reach; return those that pass."""
        files = sorted({mutant.function.file for mutant in self.mutants})

        def child(tell: Callable[[object], None]) -> None:
            import coverage  # noqa: PLC0415 - not where the rest is tested

            self._be_silent()
            measured = coverage.Coverage(data_file=None, include=files, config_file=False)
            measured.start()
            for number, item in enumerate(self._items):
                measured.switch_context(str(number))
                began = time.perf_counter()
                failed = self._run(number)
                tell([number, failed, time.perf_counter() - began, item.nodeid])
            measured.stop()
            data = measured.get_data()
            for file in data.measured_files():
                for line, contexts in data.contexts_by_lineno(file).items():
                    tell([file, line, [int(each) for each in contexts if each]])

        sound = set()
        for told in _forked(child, 10 * BOUND_S):
            if len(told) == 3:  # noqa: PLR2004 - a line
                self.reach[told[0], told[1]] = told[2]
            else:
                self.seconds[told[3]] = told[2]
                sound |= set() if told[1] else {told[0]}
        self._say(f"{len(sound)} of {len(self._items)} tests, {sum(self.seconds.values()):.0f} s")
        if not self.reach:
            raise RuntimeError(f"nothing is known of what tests reach: {len(self.seconds)} ended")
        return sound

    def _be_silent(self) -> None:
        plugins = self._items[0].config.pluginmanager
        plugins.unregister(name="terminalreporter")

    def _run(self, number: int) -> bool:
        """Run a test; return whether it failed."""
        self._failed = False
        item = self._items[number]
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        return self._failed

    def _killers(
        self, mutant: Mutant, functions: Sequence[FunctionType], sound: set[int]
    ) -> list[str] | None:
        """Return tests that fail with a mutant."""
        code = code_of(mutant)
        free = len(code.co_freevars)  # less where the one call of `super` is left out
        if not functions or any(len(each.__code__.co_freevars) != free for each in functions):
            return None
        left = self._tests(mutant, sound)
        killers: list[str] = []

        def child(tell: Callable[[object], None]) -> None:
            self._be_silent()
            for function in functions:
                function.__code__ = code
            for number in left:
                tell([number, self._run(number)])

        while left and len(killers) < self.enough:
            for number, failed in _forked(child):
                left.remove(number)
                if failed:
                    killers.append(self._items[number].nodeid)
                if len(killers) >= self.enough:
                    return killers
            if left:  # it hangs, or has ended the process
                killers.append(self._items[left.pop(0)].nodeid)
        return killers

    def _tests(self, mutant: Mutant, sound: set[int]) -> list[int]:
        """Return the tests that reach a mutant, the quickest first, as far as time allows."""
        reached = set(self.reach.get((mutant.function.file, mutant.line), ())) & sound
        spent = 0.0
        allowed: list[int] = []
        for number in sorted(reached, key=lambda each: self.seconds[self._items[each].nodeid]):
            spent += self.seconds[self._items[number].nodeid]
            if spent > BUDGET_S and allowed:
                break
            allowed.append(number)
        return allowed


def _forked(
    run: Callable[[Callable[[object], None]], None], silent_s: float = BOUND_S
) -> Iterator[list[Any]]:
    """Run something in a fork of this process, and yield what it tells, until it is silent."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(nowhere, fd)
        try:
            with os.fdopen(writing, "w", 1) as pipe:
                run(lambda told: print(json.dumps(told), file=pipe, flush=True))
        finally:
            os._exit(0)
    os.close(writing)
    rest = b""
    try:
        while select.select([reading], [], [], silent_s)[0]:
            read = os.read(reading, 1 << 16)
            if not read:
                return
            *lines, rest = (rest + read).split(b"\n")
            yield from map(json.loads, lines)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)


def _is_example(item: pytest.Item) -> bool:
    """Return whether a test is a function that draws nothing."""
    function = getattr(item, "function", None)
    method = getattr(item, "cls", None) is not None  # such as a state machine's
    return function is not None and not method and not hasattr(function, "hypothesis")


def _function(nodeid: str) -> str:
    return nodeid.split("[", maxsplit=1)[0]


def _may_go(runs: MutantRuns) -> dict[str, int]:
    """Return the lines of each test function that is no property, nor one of security."""
    lengths: dict[str, int] = {}
    for item in runs._items:  # noqa: SLF001 - of this module
        if _is_example(item) and "security" not in item.nodeid:
            code = inspect.unwrap(item.function).__code__  # type: ignore[attr-defined] # an example
            lengths[_function(item.nodeid)] = len({line for *_, line in code.co_lines() if line})
    return lengths


def record(runs: MutantRuns) -> dict[str, Any]:
    """Return all that runs have found."""
    ids = [item.nodeid for item in runs._items]  # noqa: SLF001 - of this module
    needs = [{_function(each) for each in killers} for _, killers in runs.ends if killers]
    needs += [{_function(ids[each]) for each in reached} for reached in runs.reach.values()]
    return {
        "seconds": runs.seconds,
        "mutants": [
            [
                str(Path(m.function.file).relative_to(ROOT)),
                m.function.name,
                m.line,
                m.change,
                killers,
            ]
            for m, killers in runs.ends
        ],
        "reach": [[str(Path(f).relative_to(ROOT)), n, each] for (f, n), each in runs.reach.items()],
        "spare": spare(_may_go(runs), needs) if runs.enough > 1 else [],
    }


def _say(text: str) -> None:
    print(text, file=sys.__stderr__, flush=True)


def main(args: Sequence[str]) -> int:
    """Run what the arguments ask for; return the exit code."""
    import pytest  # noqa: PLC0415 - not where its parts are used alone

    parser = argparse.ArgumentParser(
        prog="python -m tools.testing.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("package", help="a folder or a module of the product")
    parser.add_argument("--tests", nargs="+", help="default: tests/unit/PACKAGE")
    parser.add_argument("--sample", type=int, default=300, help="how many mutants (300)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (1)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after so many")
    parser.add_argument(
        "--examples", action="store_true", help="run no properties, which take long"
    )
    parser.add_argument("--all-tests", action="store_true", help="look for several killers")
    parser.add_argument("--record", type=Path, help="a file of JSON for what is found")
    parser.add_argument("--survivors", action="store_true", help="print what no test killed")
    asked = parser.parse_args(args)
    package = ROOT / asked.package
    files = [package] if package.is_file() else sorted(package.rglob("*.py"))
    every = [each for file in files if "_pb2" not in file.name for each in mutants_of(file)]
    if not every:
        parser.error(f"{asked.package} has no functions")
    runs = MutantRuns(
        sample(every, asked.sample, asked.seed),
        ENOUGH if asked.all_tests else 1,
        60 * asked.minutes,
        _say,
        properties=not asked.examples,
    )
    options = ["-q", "-p", "no:xdist", "-p", "no:randomly", "-p", "no:cacheprovider"]
    tests = asked.tests or [f"tests/unit/{asked.package.removesuffix('.py')}"]
    pytest.main([*options, f"--timeout={BOUND_S / 2}", *tests], plugins=[runs])
    if not runs.ends:
        return 1
    killed, of = runs.score()
    low, high = interval(killed, of)
    _say(
        f"{asked.package}: {killed} of {of} mutants killed, {killed / of:.1%}"
        f" (95 %: {low:.1%} to {high:.1%}), of {len(every)}; seed {asked.seed}"
    )
    if asked.survivors:
        for mutant, killers in runs.ends:
            if killers == []:
                _say(f"{mutant.function.file}:{mutant.line}: {mutant.change}")
    if asked.record:
        asked.record.write_text(json.dumps(record(runs)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
