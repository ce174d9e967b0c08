"""Mutants of a module, the interval of a score, and tests that can go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.testing.mutants import code_of, interval, mutants_of, sample, spare

MODULE = '''
LIMIT = 3

class Counter:
    """Counts."""

    def __init__(self, most=2):
        self.most = most

    def add(self, number):
        """Add a number."""
        if number < self.most and not self.full:
            self.note(number, at="end")
        return {"more", "less"}
'''


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """Return a file of a class with two methods."""
    file = tmp_path / "module.py"
    file.write_text(MODULE)
    return file


def test_mutants_are_of_the_bodies_of_functions(module):
    """Defaults, constants of modules and docstrings are not among them."""
    assert [(each.function.name, each.line, each.change) for each in mutants_of(module)] == [
        ("__init__", 8, "without `self.most = most`"),
        ("add", 12, "Lt becomes LtE"),
        ("add", 12, "And becomes Or"),
        ("add", 13, "without `self.note(number, at='end')`"),
        ("add", 13, "'end' becomes another text"),
        ("add", 13, "without the argument at"),
        ("add", 12, "not (number < self.most and (not self.full))"),
        ("add", 14, "'more' becomes another text"),
        ("add", 14, "'less' becomes another text"),
        ("add", 14, "without its last member"),
        ("add", 14, "returns None, not {'more', 'less'}"),
    ]


def test_a_mutant_has_the_code_of_its_function(module):
    """Put in a function's place, it does what the change says."""

    def add(self, number):
        raise AssertionError(self, number)

    *_, nothing = mutants_of(module)
    add.__code__ = code_of(nothing)

    class Full:
        most, full = 1, True

    assert add(Full(), 0) is None
    add.__code__ = code_of(mutants_of(module)[-2])
    assert add(Full(), 0) == {"more"}


def test_a_sample_is_the_same_for_a_seed(module):
    """It has no mutant twice, and all where there are no more."""
    every = mutants_of(module)
    assert sample(every, 3, 1) == sample(every, 3, 1)
    assert sorted(sample(every, 99, 1)) == sorted(every)


def test_the_interval_of_a_share():
    """Wilson's, as tables have it; nothing is known of no mutants."""
    assert interval(8, 10) == pytest.approx((0.490, 0.943), abs=0.001)
    assert interval(0, 0) == (0.0, 1.0)


def test_tests_go_while_each_need_keeps_one():
    """The longest first, and none that alone meets a need."""
    needs = [["a", "b"], ["b", "c"], ["c", "property"], ["d"], []]
    assert spare({"a": 5, "b": 9, "c": 7, "d": 20}, needs) == ["b"]
    assert spare({"a": 5, "b": 3, "c": 7, "d": 20}, needs) == ["c", "a"]
