"""The bytes of a real API server: what it answers to lists and watches of EndpointSlices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.fake_api_server import FakeApiServer, refused, too_old
from support.inference_pools import pod_object
from xds_server.applications.discovery.kubernetes.answers import (
    Event,
    ExpiredError,
    Lines,
    RefusedError,
    event,
    page,
    refusal,
    status,
)
from xds_server.applications.discovery.kubernetes.mirror import Mirror
from xds_server.applications.discovery.kubernetes.pods import PODS
from xds_server.fleet.model.kubernetes import KubernetesSpec

FOLDER = Path(__file__).parent / "fixtures/kubernetes-1.36.3"
ANSWERS: dict[str, dict[str, Any]] = json.loads((FOLDER / "answers.json").read_text())
SERVER = "https://127.0.0.1:6443"
SPEC = KubernetesSpec.model_validate(
    {
        "namespace": "infer",
        "selector": {"app": "triton"},
        "labels": {"variant": "tidegate.dev/variant", "device": "tidegate.dev/device"},
    }
)


def body(name: str) -> bytes:
    """Return a recorded answer."""
    return (FOLDER / f"{name}.json").read_bytes()


def events(name: str) -> list[Event]:
    """Return the events of a recorded watch."""
    return [event(line) for line in Lines().feed(body(name))]


def error(name: str) -> ExpiredError | RefusedError:
    """Return the error of a refusal that came as a status."""
    verb = "watch" if "watch" in ANSWERS[name]["query"] else "list"
    return refusal(verb, "infer", ANSWERS[name]["status"], status(body(name)), SERVER)


def mirrored() -> Mirror:
    """Return a mirror after the recorded list."""
    mirror = Mirror(SPEC)
    assert mirror.page(page(body("list")), 0.0)
    return mirror


def test_a_list_becomes_replicas() -> None:
    """Two pods of the Service, and two addresses of slices made by hand."""
    seen = mirrored().seen()
    assert seen.fault == ""
    assert seen.observation is not None
    pods = [each for each in seen.observation.endpoints if each.identity.startswith("triton-")]
    assert len(pods) == 2
    assert {(each.variant, each.zone, each.device) for each in pods} == {
        ("stable", "zone-a", "a100")
    }
    others = [each.identity for each in seen.observation.endpoints if each not in pods]
    assert others == ["192.0.2.1:8001", "192.0.2.2:8001"]


def test_pages_make_the_same_list() -> None:
    """The first page tells how it goes on."""
    first, second = page(body("page-1")), page(body("page-2"))
    assert len(first.items) == len(second.items) == 1
    assert first.more
    assert first.version == second.version
    whole = page(body("list"))
    assert [first.items[0], second.items[0]] == list(whole.items[:2])


def test_a_watch_tells_a_pod_s_whole_end() -> None:
    """It terminates while it serves, does not serve any more, and is gone."""
    mirror = mirrored()
    before = {each.identity for each in mirror.seen().observation.endpoints}
    ending: list[tuple[bool, bool]] = []
    for each in events("watch"):
        mirror.change(each)
        found = mirror.seen().observation
        assert found is not None
        ending += [(one.serving, True) for one in found.endpoints if one.terminating]
    assert (True, True) in ending
    after = mirror.seen().observation
    assert after is not None
    assert sum(one.identity.startswith("triton-") for one in after.endpoints) == 1
    assert "192.0.2.1:8001" in before
    assert "192.0.2.1:8001" not in {one.identity for one in after.endpoints}


def test_bookmarks_have_a_version_and_nothing_else() -> None:
    """The last event of a watch of this kind is one."""
    last = events("bookmark")[-1]
    assert last.kind == "BOOKMARK"
    assert int(last.version) > 0
    assert not last.object.get("endpoints")


def test_an_old_version_is_gone() -> None:
    """After compaction a watch is told so in its stream, which began with status 200."""
    assert ANSWERS["too-old-watch"]["status"] == 200
    with pytest.raises(ExpiredError, match="too old resource version"):
        events("too-old-watch")


def test_an_old_continuation_is_gone() -> None:
    """A list is told so by the status."""
    assert ANSWERS["too-old-list"]["status"] == 410
    assert isinstance(error("too-old-list"), ExpiredError)


def test_a_version_of_the_future_is_answered_with_nothing() -> None:
    """As after a store was restored: neither error nor bookmark, so silence is no proof."""
    assert ANSWERS["too-new"]["status"] == 200
    assert body("too-new") == b""


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_denial_names_the_account(verb: str) -> None:
    """As the API server writes it."""
    assert str(error(f"forbidden-{verb}")).startswith(
        f"{SERVER} forbids to system:serviceaccount:infer:tidegate-control to {verb} "
        "endpointslices.discovery.k8s.io in the namespace 'infer'"
    )


def test_other_refusals_are_told() -> None:
    """A token that is none, and a version that is none."""
    assert "does not accept the credentials (401)" in str(error("unauthorized"))
    assert isinstance(error("bad-version"), RefusedError)


def _keys(found: dict[str, Any]) -> set[str]:
    return set(found) - {"details"}


def test_the_tests_own_server_answers_alike() -> None:
    """What unit tests answer has the fields, reasons and codes of the real one."""
    real = json.loads(body("forbidden-list"))
    made = refused(403, "Forbidden", "", group="discovery.k8s.io", kind="endpointslices")
    assert _keys(real) == _keys(made)
    assert real["details"] == made["details"]
    assert (real["reason"], real["code"]) == (made["reason"], made["code"])
    real = json.loads(body("too-old-watch"))["object"]
    made = too_old("1", 2)
    assert _keys(real) == _keys(made)
    assert (real["reason"], real["code"]) == (made["reason"], made["code"])


async def test_the_tests_own_server_tells_a_watch_what_its_selector_sees() -> None:
    """What begins to match is added, what no longer does is deleted as it was, others are silent.

    As ``cacheWatcher.convertToWatchEvent`` of Kubernetes does; not recorded.
    """
    other = {"labels": {"app": "web"}}
    async with FakeApiServer(PODS) as server, aiohttp.ClientSession() as http:
        server.put(pod_object("a", "10.1.0.1"))
        server.put(pod_object("b", "10.1.0.2", **other))
        query = {"watch": "1", "labelSelector": "app=vllm", "timeoutSeconds": "60"}
        query["resourceVersion"] = str(server.version)
        async with http.get(server.url + PODS.path("infer"), params=query) as answer:
            server.put(pod_object("b", "10.1.0.3", **other))
            server.delete("b")
            server.put(pod_object("a", "10.1.0.1", **other))
            left = str(server.version)
            server.put(pod_object("a", "10.1.0.1", ready=False))
            server.put(pod_object("a", "10.1.0.1"))
            seen = [event(await answer.content.readline()) for _ in range(3)]
    assert [each.kind for each in seen] == ["DELETED", "ADDED", "MODIFIED"]
    assert seen[0].version == left
    assert seen[0].object["metadata"]["labels"] == {"app": "vllm"}
