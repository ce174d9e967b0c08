"""Answers of an API server, parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.endpoint_slices import endpoint_slice, slice_list
from xds_server.applications.discovery.kubernetes.answers import (
    BadAnswerError,
    ExpiredError,
    Lines,
    RefusedError,
    event,
    page,
    refusal,
    status,
)

SERVER = "https://10.96.0.1:443"


def test_a_page_tells_how_the_list_goes_on() -> None:
    """The last page has no continuation."""
    found = page(json.dumps(slice_list(endpoint_slice("a"), version=7, more="next")).encode())
    assert (len(found.items), found.version, found.more) == (1, "7", "next")
    assert page(json.dumps(slice_list(version=8)).encode()).more == ""


def test_an_empty_list_may_be_null() -> None:
    """Go writes null for a slice that was never made."""
    assert page(json.dumps({**slice_list(), "items": None}).encode()).items == ()


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"kind":"Status"}',
        json.dumps({**slice_list(), "items": {}}).encode(),
        json.dumps({**slice_list(), "items": [1]}).encode(),
        json.dumps({**slice_list(), "metadata": None}).encode(),
        json.dumps({**slice_list(), "metadata": {"resourceVersion": 7}}).encode(),
        json.dumps({**slice_list(), "metadata": {"resourceVersion": ""}}).encode(),
        json.dumps({**slice_list(), "metadata": {"resourceVersion": "7", "continue": 1}}).encode(),
    ],
)
def test_other_pages_are_refused(wrong: bytes) -> None:
    """A proxy's page is no empty list."""
    with pytest.raises(BadAnswerError):
        page(wrong)


def _event(kind: str, found: Any) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode()


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"])
def test_an_event_moves_the_version_on(kind: str) -> None:
    """A bookmark has nothing but a version."""
    found = event(_event(kind, endpoint_slice("a", version=12)))
    assert (found.kind, found.version) == (kind, "12")


@pytest.mark.parametrize(
    "wrong",
    [
        b"x",
        b"7",
        b"{}",
        _event("ADDED", None),
        _event("ADDED", {"metadata": {}}),
        _event("SYNC", endpoint_slice("a")),
        b'{"type":null,"object":{}}',
    ],
)
def test_other_events_are_refused(wrong: bytes) -> None:
    """An event that is not understood may have been a change."""
    with pytest.raises(BadAnswerError):
        event(wrong)


def test_an_error_in_the_stream_expires_or_refuses() -> None:
    """The status is 200 all the same: the stream had begun."""
    with pytest.raises(ExpiredError, match="too old"):
        event(_event("ERROR", {"code": 410, "message": "too old resource version: 5 (9)"}))
    with pytest.raises(RefusedError, match="HTTP status 500: etcd"):
        event(_event("ERROR", {"code": 500, "message": "etcd"}))
    with pytest.raises(RefusedError, match="with an error"):
        event(_event("ERROR", {}))


def test_a_denial_says_what_to_bind() -> None:
    """Verb, resource, namespace and the Role that is missing, in one sentence."""
    said = {
        "kind": "Status",
        "message": 'endpointslices.discovery.k8s.io is forbidden: User "system:serviceaccount:'
        'infer:tidegate" cannot list resource "endpointslices" in API group ...',
    }
    assert str(refusal("list", "infer", 403, said, SERVER)) == (
        "https://10.96.0.1:443 forbids to system:serviceaccount:infer:tidegate to list "
        "endpointslices.discovery.k8s.io in the namespace 'infer': bind there a Role with "
        "apiGroups [discovery.k8s.io], resources [endpointslices] and verbs [list, watch]"
    )


@pytest.mark.parametrize(
    ("code", "reason"), [(401, "token has expired"), (404, "no API server"), (503, "status 503")]
)
def test_refusals_say_why(code: int, reason: str) -> None:
    """A proxy's answer has no Status object; the code is enough."""
    assert reason in str(refusal("watch", "infer", code, {}, SERVER))


@pytest.mark.parametrize(
    ("header", "details", "wait_s"),
    [("7", {}, 7.0), (None, {"retryAfterSeconds": 3}, 3.0), ("Sunday", {}, None), (None, [], None)],
)
def test_a_busy_server_says_when(header: str | None, details: Any, wait_s: float | None) -> None:
    """In the header, or in the Status."""
    found = refusal("list", "infer", 429, {"details": details}, SERVER, header)
    assert isinstance(found, RefusedError)
    assert found.wait_s == wait_s


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (410, {}),
        (400, {"reason": "Expired"}),
        (504, {"details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}),
    ],
)
def test_versions_that_a_server_does_not_have(code: int, said: dict[str, Any]) -> None:
    """Too old, or too new for a store that was restored: both need a new list."""
    assert isinstance(refusal("watch", "infer", code, said, SERVER), ExpiredError)


@pytest.mark.parametrize("body", [b"", b"nope", b"[]", b'{"kind":"Pod"}', b'{"kind":"Status"'])
def test_other_bodies_of_refusals_are_empty(body: bytes) -> None:
    """They are never quoted: they may be pages of proxies."""
    assert status(body) == {}


@given(st.binary(max_size=64))
def test_any_bytes_are_refused(text: bytes) -> None:
    """No answer raises anything but the errors of this module."""
    for parse in (page, event):
        with pytest.raises((BadAnswerError, RefusedError, ExpiredError)):
            parse(text)


@given(st.lists(st.binary(min_size=1, max_size=9)), st.lists(st.integers(0, 9)))
def test_lines_do_not_depend_on_chunks(parts: list[bytes], cuts: list[int]) -> None:
    """TCP cuts where it likes; blank lines are keepalives."""
    lines = [part.replace(b"\n", b".") for part in parts]
    text, found, reader = b"".join(line + b"\n" for line in lines), [], Lines()
    for cut in [*cuts, len(text)]:
        found += list(reader.feed(text[:cut]))
        text = text[cut:]
    assert found == [line for line in lines if line.strip()]


def test_a_line_is_bounded() -> None:
    """At the bound it is read; above it the watch ends before the memory does."""
    assert list(Lines(4).feed(b"abcd\n")) == [b"abcd"]
    with pytest.raises(BadAnswerError, match="larger than 4 bytes"):
        list(Lines(4).feed(b"abcde\n"))
    reader = Lines(4)
    list(reader.feed(b"abc"))
    with pytest.raises(BadAnswerError, match="larger than 4 bytes"):
        list(reader.feed(b"de"))
