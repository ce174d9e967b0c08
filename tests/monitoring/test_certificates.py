"""Certificates that end soon: status, log, metric, alert and runbook say so, over TLS."""

from __future__ import annotations

import pytest

from monitoring.prometheus import scraping
from support.incidents import aging, certificates_told
from tidegate.stack.processes.ports import HeldPorts

pytestmark = pytest.mark.timeout(240)


async def test_certificates_that_end_soon(http, tmp_path, record_property) -> None:
    """A tenth of their life is left: detected at the first look at the files. Scraped over TLS."""
    async with aging(tmp_path) as (pair, seen, viewer):
        assert viewer.pair is not None
        tls = {
            "ca_file": str(viewer.ca),
            "cert_file": str(viewer.pair.certificate),
            "key_file": str(viewer.pair.key),
        }
        jobs = {
            f"tidegate-{name}": {"targets": [address], "scheme": "https", "tls_config": tls}
            for name, address in pair.pages.items()
        }
        with HeldPorts() as ports:
            async with scraping(http, tmp_path, ports.address(), jobs) as running:
                seen.prometheus = running
                took = [await seen.told(what) for what in certificates_told(pair)]
    record_property("told_after", f"{max(took):.1f} s")
