"""Recorder of the resources of fleets that use nothing of the edge.

``PYTHONPATH=tests:. python -m support.record_resources FILE`` writes a digest of each resource as
JSON. ``tests/contract/test_recorded_resources.py`` compares: a setting of the edge changes nothing
for a fleet without it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, Final

from support.fleets import endpoint, pool
from tidegate_api.names import SHORT_TYPE
from xds_server.fleet.load import load_text
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.view import View
from xds_server.snapshots.build import front_resources, picker_resources, upstream_resources

COMMAND: Final = (
    "PYTHONPATH=tests:. python -m support.record_resources "
    "tests/contract/fixtures/resources-without-edge.json"
)
EXAMPLES: Final = ("minimal", "fleet", "operations")
"""Fleets of ``docs/examples``."""

_TLS: Final = {"certificate": "/a.crt", "key": "/a.key"}
_CHAT: Final = "/v1/chat/completions"
BROAD: Final[dict[str, Any]] = {
    "listener": {
        "address": "0.0.0.0:443",
        "debug_headers": True,
        "client_headers": ["tidegate-pool", "tidegate-model", "x-ab"],
        "tls": {**_TLS, "client_ca": "/ca.crt"},
    },
    "pickers": {"addresses": ["127.0.0.1:18001", "127.0.0.1:18002"], "timeout": "300ms"},
    "pools": [
        pool(
            default=True,
            match={"models": ["llm-model"], "paths": ["/v1/completions", _CHAT]},
            variants=[
                {
                    "name": "stable",
                    "weight": 90,
                    "model_version": "1",
                    "match": {"headers": {"x-ab": "a"}},
                },
                {"name": "canary", "weight": 10, "match": {"cookies": {"ab": "b"}}},
            ],
            endpoints=[
                endpoint(1, variant="stable", zone="a"),
                endpoint(2, zone="b", capacity=2.0),
                endpoint(3, variant="canary", draining=True),
            ],
            zones=["a", "b"],
            shadow={"variant": "canary", "pool": "second", "percent": 50},
            upstream_tls={**_TLS, "ca": "/b.crt", "server_name": "triton.internal"},
            slow_start={"window": "30s"},
            drop_overload=5,
            routing={"body": "full", "session_header": "x-me", "first_message": "duplex"},
        ),
        pool(
            "second",
            match={"models": ["second-model"], "paths": [_CHAT]},
            variants=[{"name": "canary"}],
            endpoints=[endpoint(5)],
            routing={"policy": "least-request", "body": "none"},
        ),
    ],
}
"""A fleet with a value for most groups of fields, but of the edge."""


def fleets() -> dict[str, Fleet]:
    """Return the recorded fleets by name."""
    folder = Path(__file__).parents[2] / "docs" / "examples"
    found = {name: load_text((folder / f"{name}.yaml").read_text()) for name in EXAMPLES}
    return {
        **found,
        "one pool": Fleet.model_validate({"pools": [pool(default=True)]}),
        "broad": Fleet.model_validate(BROAD),
    }


def digests(fleet: Fleet) -> dict[str, str]:
    """Return the SHA-256 of each resource by its type and name, its first 16 hexadecimal digits."""
    contents = {
        **upstream_resources(fleet),
        **front_resources(fleet),
        **picker_resources(View(fleet)),
    }
    return {
        f"{SHORT_TYPE[url]} {name}": hashlib.sha256(message).hexdigest()[:16]
        for url, messages in sorted(contents.items())
        for name, message in sorted(messages.items())
    }


def recorded() -> dict[str, dict[str, str]]:
    """Return the digests of all fleets."""
    return {name: digests(fleet) for name, fleet in fleets().items()}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(recorded(), indent=1) + "\n")
