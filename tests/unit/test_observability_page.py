"""The page of metrics is true."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from ext_proc.app import Picker
from ext_proc.settings import PickerSettings
from xds_server.observability import XdsMetrics

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
SUFFIX = {"counter": "_total"}


async def test_every_metric_on_the_page_exists():
    """Under this name, with its suffix; a rename is a change that users must hear of."""
    control = CollectorRegistry()
    XdsMetrics(control)
    picker = Picker(PickerSettings())._metrics.registry
    shown = {
        family.name + SUFFIX.get(family.type, "")
        for registry in (control, picker)
        for family in registry.collect()
    }
    written = set(re.findall(r"`(tidegate_(?:picker|xds)_[a-z_]+)`", PAGE.read_text()))
    assert len(written) > 30
    assert written <= shown
