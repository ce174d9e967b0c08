"""``config-dump``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import yaml

from tidegate_api.admin.v1 import admin_pb2 as api

if TYPE_CHECKING:
    from support.command_line import FakeAdmin, Run

V1, V2 = "1" * 32, "2" * 32
ANSWER = api.GetConfigResponse(
    clients=[
        api.ClientConfig(
            node="edge-1",
            kind="envoy",
            peer="ipv4:127.0.0.1:5",
            resources=[
                api.ConfigResource(
                    type="CDS",
                    name="llm/stable/grpc",
                    version=V2,
                    version_acked=V2,
                    state="SYNCED",
                    json='{"name": "llm/stable/grpc"}',
                ),
                api.ConfigResource(
                    type="RDS", name="front", version=V2, version_acked=V1, state="STALE"
                ),
                api.ConfigResource(type="EDS", name="gone", version_acked=V1, state="STALE"),
                api.ConfigResource(type="LDS", name="in", version=V2, state="NACKED"),
            ],
        )
    ],
    left_out=7,
)


def dump(run: Run, admin: FakeAdmin, *arguments: str, answer: api.GetConfigResponse = ANSWER):
    """Run the verb; return what it printed and the request."""
    asked = []
    admin.calls["GetConfig"] = lambda _, request, __: asked.append(request) or answer
    ran = run("config-dump", *arguments, "--server", admin.address)
    assert ran.code == 0, ran.err
    return ran.out, asked[0]


def test_resources_are_listed_by_client_type_name_and_version(run: Run, admin: FakeAdmin) -> None:
    """A resource that the client does not have yet shows what it has."""
    out, _ = dump(run, admin)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert f"edge-1 CDS llm/stable/grpc {V2[:12]} SYNCED" in lines
    assert f"edge-1 RDS front {V2[:12]} STALE, has {V1[:12]}" in lines
    assert f"edge-1 EDS gone removed STALE, has {V1[:12]}" in lines
    assert f"edge-1 LDS in {V2[:12]} NACKED" in lines
    assert "7 more are left out" in out


def test_the_filters_are_the_control_server_s(run: Run, admin: FakeAdmin) -> None:
    """Only what is asked for is sent."""
    _, request = dump(run, admin, "--client", "edge-1", "--type", "cds", "--name", "llm/*")
    assert (request.client, request.type, request.name) == ("edge-1", "cds", "llm/*")
    assert not request.content


def test_content_is_yaml_or_json(run: Run, admin: FakeAdmin) -> None:
    """A table has no room for it."""
    out, request = dump(run, admin, "--content")
    assert request.content
    assert yaml.safe_load(out)[0]["content"] == {"name": "llm/stable/grpc"}
    out, _ = dump(run, admin, "--content", "-o", "json")
    rows = json.loads(out)
    assert rows[0]["version_acked"] == V2
    assert rows[2]["version"] is None


def test_nothing_found_is_said(run: Run, admin: FakeAdmin) -> None:
    """An empty table would be no answer."""
    out, _ = dump(run, admin, answer=api.GetConfigResponse())
    assert out == "no client has such a resource\n"
