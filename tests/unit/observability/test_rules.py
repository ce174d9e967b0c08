"""Rules, alerts and dashboards name what exists, and each alert has a test and a runbook."""

from __future__ import annotations

import re
import runpy

import pytest
import yaml
from prometheus_client import CollectorRegistry

from ext_proc.app import Picker
from ext_proc.settings import PickerSettings
from support.promql import FOLDER, ROOT, Expression, alerts, expressions, rules
from xds_server.applications.traffic.verdict import KINDS
from xds_server.observability import XdsMetrics

RUNBOOKS = (ROOT / "docs/how-to/runbooks.md").read_text()
TESTS = yaml.safe_load((FOLDER / "tests/alerts.yaml").read_text())
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""
FOREIGN = {
    "up": set(),
    "envoy_server_days_until_first_cert_expiring": set(),
}
"""Metrics that others make, with the labels of theirs that are used."""
PARTS = {
    "histogram": ("_bucket", "_count", "_sum"),
    "summary": ("_count", "_sum"),
    "counter": ("_total",),
    "gauge": ("",),
}


@pytest.fixture(scope="module")
async def known() -> dict[str, set[str]]:
    """Return the labels of each series: of both services, of recording rules, of others."""
    control = CollectorRegistry()
    XdsMetrics(control)
    found = {name: set(labels) for name, labels in FOREIGN.items()}
    for registry in (control, Picker(PickerSettings())._metrics.registry):
        for collector in registry._collector_to_names:
            for family in collector.collect():
                labels = getattr(family, "_labelnames", getattr(collector, "_labelnames", ()))
                for end in PARTS[family.type]:
                    own = {"le"} if end == "_bucket" else set()
                    found[family.name + end] = own | set(labels)
    for rule in rules():
        if "record" in rule:
            by = Expression("", rule["expr"]).grouped
            found[rule["record"]] = by - {"le", "instance"}
    return found


def test_each_metric_exists_and_has_the_labels(known: dict[str, set[str]]) -> None:
    """A rename in the code is a change here, too."""
    all_of = list(expressions())
    assert len(all_of) > 60
    for each in all_of:
        assert each.matched, each
        for name, labels in each.matched:
            assert name in known, f"{each.where}: {name} does not exist"
            assert labels <= known[name] | SCRAPED, f"{each.where}: labels of {name}"


def test_series_are_grouped_by_labels_that_one_of_them_has(known: dict[str, set[str]]) -> None:
    """A group by a label that does not exist is one group, silently."""
    for each in expressions():
        have = set().union(*(known[name] for name, _ in each.matched)) | SCRAPED
        assert each.grouped <= have, each.where


def test_kinds_of_reasons_are_those_of_the_verdict() -> None:
    """An alert of a kind that is not counted would never fire."""
    named = [
        kind
        for each in expressions()
        for kind in re.findall(r'tidegate_xds_reasons\{kind="([^"]+)"', each.text)
    ]
    assert len(named) > 4
    assert set(named) <= set(KINDS)


def test_each_alert_has_a_runbook() -> None:
    """Symptom, look, do; linked by its annotation. And no section is of an alert that is gone."""
    sections = re.split(r"^### ", RUNBOOKS, flags=re.MULTILINE)[1:]
    texts = dict(each.split("\n", 1) for each in sections)
    assert set(texts) == set(alerts())
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook"] == f"docs/how-to/runbooks.md#{name.lower()}"
        for word in ("Symptom", "Look", "do"):
            assert re.search(rf"\*\*{word}\*\*", texts[name], re.IGNORECASE), (name, word)


def test_each_alert_is_tested_to_fire_and_not_to() -> None:
    """`make test-rules` runs these."""
    seen: dict[str, set[bool]] = {}
    for test in TESTS["tests"]:
        for one in test["alert_rule_test"]:
            seen.setdefault(one["alertname"], set()).add(bool(one["exp_alerts"]))
    assert seen == {name: {True, False} for name in alerts()}


def test_each_alert_says_how_bad_it_is() -> None:
    """So that a route of the Alertmanager can tell a page from a ticket."""
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in {"critical", "warning"}, name
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}, name


def test_the_dashboards_are_current() -> None:
    """They are written by `observability/generate.py`, never by hand."""
    files = runpy.run_path(str(FOLDER / "generate.py"))["fresh"]()
    assert [path.name for path, text in files.items() if path.read_text("utf-8") != text] == []
