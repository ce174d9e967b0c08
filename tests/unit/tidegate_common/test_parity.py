"""What counts where descriptions of models are compared."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate_common.parity import MAX_DEPTH, ParityError, canonical, digest, unordered, usual


@pytest.mark.parametrize(
    ("forms", "first", "others"),
    [
        ({"r1": "a", "r2": "b", "r3": "b"}, "r2", {"r1"}),
        ({"r1": "a", "r2": "b"}, "r1", {"r2"}),
        ({"r1": "a", "r2": "a"}, "r1", set()),
    ],
)
def test_the_description_of_most_counts(
    forms: dict[str, str], first: str, others: set[str]
) -> None:
    """Of equally many that of the first, so that the same question has the same answer."""
    assert usual(forms) == (first, others)


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    """Servers write maps in any order; lists have one."""
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest([1, 2]) != digest([2, 1])


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({"a": 0, "b": "", "c": False, "d": None, "e": {}, "f": []}, {}),
        ({"format": "FORMAT_NONE", "kind": "KIND_CPU"}, {"kind": "KIND_CPU"}),
        ({"a": {"b": {"c": 0}}}, {}),
        ({"steps": [{"a": 0}, {}, 0]}, {"steps": [{}, {}, 0]}),
        (
            {"instance_group": [{"name": "x", "gpus": [1], "count": 2}]},
            {"instance_group": [{"count": 2}]},
        ),
        ({"instance_group": [1]}, {"instance_group": [1]}),
        ({"input": [{"name": "b"}, {"name": "a"}]}, {"input": [{"name": "a"}, {"name": "b"}]}),
    ],
)
def test_what_says_nothing_of_the_model_is_left_out(
    config: dict[str, Any], kept: dict[str, Any]
) -> None:
    """Defaults, the machine, and the order of inputs; the place in a list is kept."""
    assert canonical(config) == kept
    assert canonical(kept) == kept


def test_depth_is_bounded() -> None:
    """A replica may answer anything."""
    nested: Any = 1
    for _ in range(MAX_DEPTH):
        nested = {"a": nested}
    assert canonical(nested) == nested
    with pytest.raises(ParityError):
        canonical({"a": nested})


def test_metadata_are_compared_without_the_order_of_tensors() -> None:
    """Whatever stands in the list."""
    assert unordered({"outputs": [{"name": "b"}, 3], "x": [2, 1]}) == {
        "outputs": [3, {"name": "b"}],
        "x": [2, 1],
    }
