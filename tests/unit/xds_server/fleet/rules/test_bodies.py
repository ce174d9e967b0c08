"""Which bodies Envoy itself reads."""

from __future__ import annotations

from typing import Any

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.rules.bodies import NEVER, BodyRead, body_reads

CHAT = "/v1/chat/completions"


def two(first: dict[str, Any] | None = None, second: dict[str, Any] | None = None) -> Any:
    """Return a fleet of two pools over separate replicas."""
    chat = {"match": {"models": ["one"], "paths": [CHAT]}}
    other = {"match": {"models": ["two"], "paths": [CHAT]}}
    apart = [endpoint(4), endpoint(5, variant="canary")]
    return fleet(
        pool("a", default=True, **{**chat, **(first or {})}),
        pool("b", **{"endpoints": apart, **other, **(second or {})}),
    )


def test_pools_over_the_same_replicas_need_no_body() -> None:
    """Any replica can answer, so nothing is read, though the forms are shared, but streams."""
    made = fleet(pool("a", default=True), pool("b"))
    assert body_reads(made) == (NEVER, BodyRead(before=True), ())
    off = fleet(pool("a", default=True, routing={"first_message": "none"}), pool("b"))
    assert body_reads(off) == (NEVER, NEVER, ())


def test_streams_of_several_models_are_read() -> None:
    """Replicas may lack some of them; of one model Envoy's health check asks for it."""
    one, two = ({"models": ["a", "b"][:count]} for count in (1, 2))
    assert body_reads(fleet(pool(match=one))).stream == NEVER
    assert body_reads(fleet(pool(match=two))).stream == BodyRead(before=True)
    for choice in ("none", "duplex"):
        made = fleet(pool(match=two, routing={"first_message": choice}))
        assert body_reads(made).stream == NEVER


def test_a_second_model_begins_the_reading() -> None:
    """What is read follows the models of a fleet that changes."""
    before = fleet(pool(match={"models": ["a"]}))
    assert body_reads(before).stream == NEVER
    assert body_reads(fleet(pool(match={"models": ["a", "b"]}))).stream.before


def test_pools_apart_are_told_by_their_bodies() -> None:
    """Streams are read before the picker, which does not read them; all else without a pick."""
    reads = body_reads(two())
    assert reads.unary == BodyRead(before=False, without=True)
    assert reads.stream == BodyRead(before=True, without=False)
    assert reads.of_path(CHAT) == BodyRead(before=False, without=True)
    assert reads.of_path("/v1/embeddings") == NEVER


def test_other_variants_of_the_same_replicas_are_apart() -> None:
    """The default pool would draw a replica that serves another version of the other model."""
    same = [endpoint(1), endpoint(2), endpoint(3)]
    assert body_reads(two(second={"endpoints": same})).unary.without


def test_weights_change_nothing_that_is_read() -> None:
    """Shifting a canary must not change filters while clients are connected."""
    moved = pool("b")["variants"]
    moved[1]["weight"] = 0
    assert body_reads(two(second={"variants": moved})) == body_reads(two())


def test_duplex_streams_are_left_to_the_picker() -> None:
    """The picker reads their first message, also a compressed one; without it Envoy does."""
    reads = body_reads(two(first={"routing": {"first_message": "duplex"}}))
    assert reads.stream == BodyRead(before=False, without=True)


def test_a_pool_without_a_picker_is_told_before_the_picker() -> None:
    """Else its requests would cost a picker after all."""
    reads = body_reads(two(second={"routing": {"policy": "envoy"}}))
    assert reads.unary == reads.stream._replace(without=True) == BodyRead(before=True, without=True)
    assert reads.of_path(CHAT) == BodyRead(before=True, without=True)
