"""Fixtures of the endpoint-picker protocol's tests."""

from __future__ import annotations

import pytest

from ext_proc.routing.pipeline import scheduler
from ext_proc.routing.policies import auto, gpu_composite
from ext_proc.routing.state import candidates
from support.epp import MODES, SEEING, Proxy
from support.peer import Peer


@pytest.fixture(params=["grpc", "nghttp2", "generic"])
def form(request, monkeypatch):
    """Each transport, and a proxy that the control server did not configure."""
    generic = request.param == "generic"
    monkeypatch.setattr(Peer, "transport", "grpc" if generic else request.param)
    monkeypatch.setattr(Proxy, "generic", generic)
    for module in (candidates, scheduler, auto, gpu_composite):  # no reading grows old meanwhile
        monkeypatch.setattr(module, "FRESH_S", 60.0)
    return request.param


@pytest.fixture(params=MODES)
def mode(request):
    """Each body mode."""
    return request.param


@pytest.fixture(params=SEEING)
def seeing(request):
    """Each mode in which the body is read first."""
    return request.param
