"""What a real Envoy says of fleets before anything is applied."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.cli import envoy_check
from tidegate.stack.envoy import envoy_binary
from tidegate.terminal.errors import CliError
from xds_server.fleet.load import load_text

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("demo_extra")]

EXAMPLES = sorted(Path(__file__).parents[2].joinpath("docs/examples").glob("*.yaml"))

UNREADABLE = """
listener: {tls: {certificate: /no/tls.crt, key: /no/tls.key}}
pools: [{name: a, match: {models: [m]}, endpoints: [{http: "127.0.0.1:8000"}]}]
"""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_envoy_itself_takes_the_examples(example):
    """A real Envoy accepts the examples with `tidegate validate --envoy`."""
    envoy_check.hold(load_text(example.read_text(), example.name), example.name, envoy_binary())


def test_envoy_itself_refuses_what_it_cannot_use():
    """A missing certificate is detected before anything is applied."""
    fleet = load_text(UNREADABLE)
    with pytest.raises(CliError, match=r"Envoy rejects fleet: .*/no/tls\.key"):
        envoy_check.hold(fleet, "fleet", envoy_binary())
