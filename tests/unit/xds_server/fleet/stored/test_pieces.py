"""Stored forms of fleets."""

from __future__ import annotations

import json

import pytest

from support.fleets import fleet, pool
from xds_server.fleet.stored.written import digests_in, stored, whole


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"pools":[]}',
        '{"pools":["0123"]}',
        '{"waves":false,"pools":[{"name":"\\"pools\\":[\\"' + "0" * 32 + '\\"]}"}]}',
        fleet(pool("a")).model_dump_json(),
    ],
)
def test_a_text_without_digests_is_taken_as_it_is(text: str) -> None:
    """Earlier formats stored whole fleets; a damaged text is judged as a fleet."""
    assert digests_in(text) == ()
    assert whole(text, lambda _: pytest.fail("nothing is to be found")) == text


def test_a_missing_piece_is_an_error() -> None:
    """A fleet is never read without some of its pools."""
    with pytest.raises(KeyError):
        whole(stored(fleet()).text, dict[str, str]().__getitem__)


def test_the_order_of_fields_does_not_matter() -> None:
    """A later version may have other fields."""
    form = stored(fleet())
    head = {"on_reject": "keep", "pools": json.loads(form.text)["pools"]}
    text = json.dumps(head, separators=(",", ":"))
    (each,) = form.pools.values()
    assert json.loads(whole(text, lambda _: each.model_dump_json()))["on_reject"] == "keep"
