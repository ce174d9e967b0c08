"""Conversion of clients' states to the admin API's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_api.admin.v1 import admin_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xds_server.protocol.messages import ClientView
    from xds_server.protocol.publication import ClientProblem


def problems(found: Sequence[ClientProblem]) -> list[admin_pb2.ClientProblem]:
    """Return which clients did not take a change, and why."""
    return [
        admin_pb2.ClientProblem(client=p.client, state=p.state, type=p.type, message=p.message)
        for p in found
    ]


def client(view: ClientView) -> admin_pb2.ClientStatus:
    """Return the status of a connected view."""
    return admin_pb2.ClientStatus(
        node=view.node,
        kind=view.kind,
        protocol=view.protocol,
        peer=view.peer,
        connected_seconds=view.connected_s,
        build=view.build,
        lost=view.lost,
        group=view.group,
        quarantine=view.quarantine,
        twins=view.twins,
        types=[
            admin_pb2.TypeStatus(
                type=each.short,
                version_sent=each.version_sent,
                version_acked=each.version_acked,
                state=each.state,
                message=each.message,
                pending_seconds=each.pending_s,
                resources=each.resources,
            )
            for each in view.types
        ],
    )
