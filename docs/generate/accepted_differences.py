"""The tables of differences between the gateway and a replica, from those that the tests hold."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from pages import table

import xds_server

_TESTS = Path(xds_server.__file__).resolve().parents[1] / "tests"


def tables() -> dict[str, str]:
    """Return the tables of accepted differences: of fleets with a gateway, and without."""
    sys.path.append(str(_TESTS))
    module = import_module("support.differential.accepted")
    titles = ("difference", "what the gateway does", "why")
    return {
        name: table(titles, [(one.name, one.what, one.why) for one in accepted])
        for name, accepted in (
            ("accepted", module.ACCEPTED),
            ("without-gateway", module.WITHOUT_GATEWAY),
        )
    }
