"""Fleets for tests of xDS resources."""

from __future__ import annotations

from typing import Any

from xds_server.fleet.model.fleet import Fleet


def endpoint(number: int, **more: Any) -> dict[str, Any]:
    """Return one replica ``rN`` with an address for each protocol."""
    return {
        "id": f"r{number}",
        "http": f"127.0.0.1:{8000 + 10 * number}",
        "grpc": f"127.0.0.1:{8001 + 10 * number}",
        "metrics": f"http://127.0.0.1:{8002 + 10 * number}/metrics",
        **more,
    }


def pool(name: str = "llm", **more: Any) -> dict[str, Any]:
    """Return a pool with a stable and a canary variant."""
    return {
        "name": name,
        "match": {"models": [f"{name}-model"]},
        "variants": [
            {"name": "stable", "weight": 90, "model_version": "1"},
            {"name": "canary", "weight": 10, "model_version": "2"},
        ],
        "endpoints": [endpoint(1), endpoint(2), endpoint(3, variant="canary")],
        **more,
    }


def fleet(*pools: dict[str, Any], **more: Any) -> Fleet:
    """Return a fleet of these pools, or of one default pool."""
    return Fleet.model_validate({"pools": list(pools) or [pool(default=True)], **more})
