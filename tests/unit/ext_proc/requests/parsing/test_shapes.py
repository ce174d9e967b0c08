"""Declared shapes against data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.requests.parsing import shapes
from ext_proc.requests.parsing.errors import BadRequest, UnsoundRequest

VALUES = {
    "INT32": [1, -5],
    "UINT8": [1, 2],
    "INT64": [-(2**63), 2**63 - 1],
    "UINT64": [2**64 - 1],
    "FP32": [1, 2.5],
    "BYTES": ["a", ""],
    "BOOL": [True, False],
}
WRONG = {
    "INT32": ["a", 1.5, None, True, {}],
    "UINT8": [-1, 1.5, True],
    "INT64": [2**63, 1e30],
    "UINT64": [-1],
    "FP32": ["1", None, True, {}],
    "BYTES": [1, None, True, {}],
    "BOOL": [1, 0, None, "x"],
}


@given(st.lists(st.integers(0, 9), max_size=6))
def test_the_count_is_the_product(shape):
    """An empty shape is one element; a dimension of 0 makes it none."""
    product = 1
    for size in shape:
        product *= size
    assert shapes.count(shape, "x") == product


@pytest.mark.parametrize("size", [-1, 1.5, True, None, "1", [1]])
def test_a_dimension_is_an_unsigned_integer(size):
    """Triton answers 500 to the others."""
    with pytest.raises(BadRequest, match="integer of at least 0"):
        shapes.count([1, size], "x")


@pytest.mark.parametrize("shape", [[-2], [2, -3], [-(2**63), 0]])
def test_a_dimension_below_minus_1_is_unsound(shape):
    """Triton multiplies it all the same, and dies of the product of some (2.51)."""
    with pytest.raises(UnsoundRequest):
        shapes.count(shape, "x")


@pytest.mark.parametrize(
    "shape",
    [[0, 2**32, 2**31], [2**32, 0, 2**31], [2**40, 2**40, 0], [0, 2**61], [127] * 12 + [0]],
)
def test_a_dimension_of_0_hides_no_overflow(shape):
    """Triton multiplies the others, and dies of an overflow (2.51)."""
    with pytest.raises(UnsoundRequest):
        shapes.count(shape, "x")


def test_much_beside_a_dimension_of_0_is_nothing():
    """A tensor without elements takes no memory."""
    assert shapes.count([0, 2**40], "x") == 0
    assert shapes.count([2**60 - 1, 0], "x") == 0


@pytest.mark.parametrize("shape", [[2**64], [2**63], [2**40, 2**40], [10] * 100_000])
def test_too_many_elements_are_unsound(shape):
    """The product stops at the bound, so that a long shape costs no long arithmetic."""
    with pytest.raises(UnsoundRequest):
        shapes.count(shape, "x")


def test_a_long_shape_is_unsound():
    """Its length is bounded, because no data needs it: dimensions of 1 and 0 cost time only."""
    for size in (0, 1):
        shapes.count([size] * shapes.MAX_DIMENSIONS, "x")
        with pytest.raises(UnsoundRequest, match="too many dimensions"):
            shapes.count([size] * (shapes.MAX_DIMENSIONS + 1), "x")


@given(st.recursive(st.lists(st.integers(0, 5), max_size=80), st.lists, max_leaves=15))
def test_elements_in_json_are_counted_whatever_their_nesting(data):
    """The count is that of a plain walk."""

    def walk(value):
        return sum(map(walk, value)) if isinstance(value, list) else 1

    assert shapes.count_json(data, "INT32", "x") == walk(data)


def test_uneven_nesting_is_counted():
    """Triton takes arrays beside numbers."""
    assert shapes.count_json([[1], 2, [3, [4]]], "INT32", "x") == 4


@pytest.mark.parametrize("datatype", VALUES)
def test_fitting_values_are_counted(datatype):
    """Each datatype takes its values, flat and nested."""
    values = VALUES[datatype]
    assert shapes.count_json(values, datatype, "x") == len(values)
    assert shapes.count_json([values, [values]], datatype, "x") == 2 * len(values)


@pytest.mark.parametrize(
    ("datatype", "value"), [(name, value) for name in WRONG for value in WRONG[name]]
)
def test_a_value_of_a_wrong_type_is_a_bad_request(datatype, value):
    """Triton answers 500 to it."""
    for data in ([value], [VALUES[datatype][0], value], [[value]], [VALUES[datatype], value]):
        with pytest.raises(BadRequest, match="does not fit"):
            shapes.count_json(data, datatype, "x")


@pytest.mark.parametrize("value", ["a", None, {}, 1.5])
def test_a_wrong_type_is_found_in_a_long_list(value):
    """Long lists are checked by one C function."""
    with pytest.raises(BadRequest):
        shapes.count_json([1] * 10_000 + [value], "INT32", "x")


def test_a_datatype_that_json_cannot_express_is_not_counted():
    """Triton rejects it, and so it does unknown ones."""
    assert shapes.count_json([1], "FP16", "x") is None


@given(st.sampled_from(sorted(shapes.WIDTHS)), st.integers(0, 2**70), st.integers(0, 2**20))
def test_raw_data_agrees_exactly(datatype, elements, size):
    """No product wraps; a text has at least its length."""
    declared = elements * shapes.WIDTHS[datatype]
    agrees = declared <= size if datatype == "BYTES" else declared == size
    try:
        shapes.check_bytes(elements, datatype, size, "x")
    except UnsoundRequest:
        assert not agrees
    else:
        assert agrees
