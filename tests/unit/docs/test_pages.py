"""What is written by hand about closed sets of names agrees with the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

from tidegate_api.names import STRIPPED_HEADERS
from xds_server.fleet.model.routing import PolicyName

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
MAX_LINES = 300
GENERATED = re.compile(r"<!-- generated: (?!end )[^>]+-->.*?<!-- generated: end -->", re.DOTALL)
LEVELS = {"debug", "info", "warning", "error", "exception"}
LOGGERS = {"log", "_log", "self._log"}


def rows(page: str) -> set[str]:
    """Return the names in code of each table row's first cell."""
    lines = DOCS.joinpath(page).read_text().splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def events() -> set[str]:
    """Return the event names that the services log, from their source."""
    found = set()
    for package in ("ext_proc", "gateway", "xds_server", "tidegate/reporter", "tidegate_common"):
        for path in ROOT.joinpath(package).rglob("*.py"):
            text = path.read_text()
            if "log." not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in LEVELS
                    and ast.unparse(node.func.value) in LOGGERS
                ):
                    found.add(ast.literal_eval(node.args[0]))
    return found


def test_every_log_event_is_documented():
    """The page of log events has each event, and no other."""
    logged = events()
    assert len(logged) > 40
    assert rows("reference/logs.md") == logged


def test_every_policy_is_documented():
    """The page of policies has each policy, and no other."""
    assert {name for name in rows("reference/policies.md") if "(" not in name} == set(
        get_args(PolicyName)
    )


def test_pages_are_short():
    """No page but a report has more than 300 lines that are not generated."""
    lines = {
        path.relative_to(DOCS): len(GENERATED.sub("", path.read_text()).splitlines())
        for path in DOCS.rglob("*.md")
        if path.parent.name != "reports"
    }
    assert {path for path, count in lines.items() if count > MAX_LINES} == set()


def test_all_headers_of_ours_that_clients_must_not_send_are_removed():
    """The list of the filter has each name of the page's tables of such headers."""
    page = (DOCS / "reference/headers.md").read_text()
    for title in ("Control headers", "Headers of answers", "Load reports"):
        _, _, section = page.partition(f"\n## {title}\n")
        named = re.findall(r"^\| `([^`]+)`", section.partition("\n## ")[0], re.MULTILINE)
        assert named
        assert set(named) <= set(STRIPPED_HEADERS), title


def test_no_example_for_an_own_envoy_repeats_a_body_whose_end_is_not_known():
    """Where the filter sees bodies in parts, each retry policy asks for the picker's mark."""
    parts = ("BUFFERED_PARTIAL", "STREAMED", "FULL_DUPLEX_STREAMED")
    examples = sorted((ROOT / "deploy/envoy").glob("*.yaml"))
    assert examples
    for path in examples:
        text = path.read_text()
        if any(f"request_body_mode: {mode}" in text for mode in parts):
            assert text.count("retry_policy:") == text.count("retriable_request_headers"), path


def test_a_decision_is_short_and_dated():
    """A page of decisions has its date, context, decision and consequences in 250 words."""
    pages = sorted(path for path in (DOCS / "decisions").glob("*.md") if path.name != "index.md")
    assert len(pages) >= 10
    for path in pages:
        text = path.read_text()
        assert re.search(r"^\d{4}-\d{2}-\d{2}$", text, re.MULTILINE), path
        for part in ("**Context.**", "**Decision.**", "**Consequences.**"):
            assert part in text, (path, part)
        assert len(text.split()) <= 250, path


def test_each_test_that_the_endpoint_pickers_page_names_exists():
    """The conformance table is worth what its tests are."""
    page = (DOCS / "reference/endpoint-picker.md").read_text()
    named = re.findall(r"`(tests/[a-z_/]+\.py)::(test_[a-z_0-9]+)`", page)
    assert len(named) >= 13
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(), (path, test)
