"""Which requests of a fleet need a picker, in sentences for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_api.pools import ENVOY_POLICY
from xds_server.fleet.rules.bodies import (
    body_reads,
    grpc_pools,
    largest_body,
    largest_first_message,
    path_pools,
    picker_reads_compressed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xds_server.fleet.model.fleet import Fleet


def picker_needs(fleet: Fleet) -> list[str]:
    """Return one sentence per kind of request that is refused where no picker answers."""
    if not fleet.pickers.fail_open:
        asking = [pool.name for pool in fleet.pools if pool.routing.policy != ENVOY_POLICY]
        if asking:
            return [f"`pickers.fail_open` is off: all requests of {_pools(asking)} need a picker"]
    reads = body_reads(fleet)
    found = []
    closed = [pool.name for pool in fleet.pools if pool.routing.without_picker == "closed"]
    if closed:
        found.append(f"`without_picker: closed`: all requests of {_pools(closed)} need a picker")
    sharing = grpc_pools(fleet)
    names = _pools([pool.name for pool in sharing])
    if reads.unary.without:
        found.append(
            f"gRPC calls of {names} need a picker where they are compressed or larger than"
            f" {largest_body(sharing)} bytes, unless a header names the model"
        )
    if reads.stream.without:
        found.append(
            f"gRPC streams of {names} need a picker where their first message is compressed or"
            f" larger than {largest_body(sharing)} bytes, unless metadata names the model"
        )
    elif reads.stream.before and reads.unary.without:
        held = largest_first_message(sharing)
        if picker_reads_compressed(fleet):
            found.append(
                f"gRPC streams of {names} need a picker where they are compressed, and are refused"
                f" where their first message is larger than {held} bytes, unless metadata names the"
                " model"
            )
        else:
            found.append(
                f"gRPC streams of {names} are refused, with or without a picker, where their first"
                f" message is compressed or larger than {held} bytes, unless metadata names the"
                " model; `first_message: duplex` in the default pool lets the picker read it"
            )
    for path, read in reads.paths:
        if read.without:
            pools = _pools([pool.name for pool in path_pools(fleet, path)])
            found.append(f"compressed requests to {path} of {pools} need a picker")
    return found


def _pools(names: Sequence[str]) -> str:
    return f"pool {names[0]}" if len(names) == 1 else f"the pools {', '.join(names)}"
