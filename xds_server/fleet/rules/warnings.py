"""What is allowed in a fleet and probably not meant, in sentences for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import Fleet


def warnings(fleet: Fleet) -> list[str]:
    """Return one sentence per doubt, in the order of the pools."""
    return [
        f"pool {pool.name} has paths of its own and no `health.path`: if its replicas are engines"
        " without Triton's API (vLLM, SGLang), write `health: {path: /health}`; until then only"
        " pickers see whether they are ready, and Envoy sees whether they answer"
        for pool in fleet.pools
        if pool.match.paths and pool.health.path is None
    ]
