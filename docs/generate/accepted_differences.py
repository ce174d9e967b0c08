"""The table of differences between the gateway and a replica, from the one that the tests hold."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from pages import table

import xds_server

_TESTS = Path(xds_server.__file__).resolve().parents[1] / "tests"


def tables() -> dict[str, str]:
    """Return the table of accepted differences."""
    sys.path.append(str(_TESTS))
    accepted = import_module("support.differential.accepted").ACCEPTED
    rows = [(one.name, one.what, one.why) for one in accepted]
    return {"accepted": table(("difference", "what the gateway does", "why"), rows)}
