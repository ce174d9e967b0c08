"""Picks and passed-through chunks."""

from __future__ import annotations

import pytest

from ext_proc.exchange import Body
from ext_proc.exchange.messages import MAX_PASS_THROUGH_BYTES, passed_through, write_pick
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.ticket import Ticket
from tidegate_api.names import ClusterRef

REF = ClusterRef("llm", "stable", "http")
TEXT = {"blocks": (1, 2), "block_tokens": 64.0}


def decision(**changes):
    values = {
        "ticket": Ticket(7, EndpointKey("r1", 1), "llm", 1.0, 0.0),
        "addresses": ("10.0.0.1:80", "10.0.0.2:80"),
        "pool": "llm",
        "variant": "stable",
        "reason": "least",
    }
    return Decision(**{**values, **changes})


def asked(prompt=None, **blocks):
    return Request("llm", "stable", "http", Features(Form.GENERATE, prompt=prompt), **blocks)


def pick(chosen, prompt=None, blocks=TEXT):
    return write_pick(chosen, REF, asked(prompt, **blocks))


def test_a_pick_in_its_own_cluster_sets_the_destination_only():
    """No other header is set."""
    made = pick(decision())
    assert made.headers == (("x-gateway-destination-endpoint", "10.0.0.1:80,10.0.0.2:80"),)
    assert (made.clear_route_cache, made.ticket) == (False, "7")


@pytest.mark.parametrize("changes", [{"pool": "other"}, {"variant": "canary"}])
def test_a_pick_elsewhere_moves_the_request(changes):
    """Another pool or variant is named in headers, and the route is matched again."""
    made = pick(decision(**changes))
    assert made.clear_route_cache
    assert [name for name, _ in made.headers[1:]] == ["x-tidegate-pool", "x-tidegate-variant"]


def test_a_pick_that_must_not_move_has_one_address():
    """Fallbacks are removed for a sequence even if the decision has some."""
    made = pick(decision(retriable=False))
    assert made.destination == "10.0.0.1:80"
    assert made.headers[1] == ("x-envoy-max-retries", "0")


def test_a_start_keeps_its_fallbacks_but_has_no_second_reader():
    """Envoy walks the list only while no replica has read the request."""
    made = pick(decision(repeatable=False))
    assert made.destination == "10.0.0.1:80,10.0.0.2:80"
    assert made.headers[1] == ("x-tidegate-reads", "0")


def test_a_bound_is_sent_in_milliseconds():
    """Without one the route's own is in force."""
    made = pick(decision(first_answer_s=22.5))
    assert made.headers[1] == ("x-envoy-upstream-rq-per-try-timeout-ms", "22500")


def test_a_404_is_repeated_where_the_decision_says_so():
    """The header is for routes that name the answers, which generic proxies lack."""
    made = pick(decision(repeat_missing=True))
    repeats = (("x-envoy-retry-on", "retriable-headers"), ("x-tidegate-missing", "1"))
    assert made.headers[1:3] == repeats
    assert len(pick(decision(repeat_missing=True, retriable=False)).headers) == 2
    generic = write_pick(decision(repeat_missing=True), REF, asked(**TEXT), generic=True)
    assert "x-envoy-retry-on" not in dict(generic.headers)


def test_tokens_are_estimates_and_unknown_without_a_prompt():
    """Four characters count as a token; without a prompt the number is unknown."""
    assert pick(decision()).prompt_tokens is None
    made = pick(decision(matched_blocks=1), prompt=b"x" * 600)
    assert (made.prompt_tokens, made.matched_tokens) == (150, 64)


def test_known_tokens_are_no_estimates():
    """Where token ids are known, they are counted."""
    blocks = {"blocks": (1, 2, 3), "block_tokens": 16.0, "tokens": 50}
    made = pick(decision(matched_blocks=2), prompt=b"x" * 600, blocks=blocks)
    assert (made.prompt_tokens, made.matched_tokens, made.prompt_blocks) == (50, 32, 3)


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (0, 1),
        (MAX_PASS_THROUGH_BYTES - 1000, 1),
        (MAX_PASS_THROUGH_BYTES, 1),
        (MAX_PASS_THROUGH_BYTES + 1, 2),
        (MAX_PASS_THROUGH_BYTES + 1000, 2),
        (2 * MAX_PASS_THROUGH_BYTES, 2),
        (2 * MAX_PASS_THROUGH_BYTES + 1000, 3),
    ],
)
def test_pass_through_sizes(size, count):
    """V75: chunks at the bound, the end flag only on the last, all bytes present."""
    made = passed_through(Body(b"x" * size, end_of_stream=True))
    assert len(made) == count
    assert sum(len(part.chunk) for part in made) == size
    assert [part.end_of_stream for part in made] == [False] * (count - 1) + [True]
