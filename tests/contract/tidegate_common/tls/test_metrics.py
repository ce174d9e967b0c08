"""Metrics of certificates."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from support.identities import Machines
from tidegate_common.tls.files import Identity
from tidegate_common.tls.metrics import CertificateMetrics
from tidegate_common.tls.roles import RoleTable
from tidegate_common.tls.settings import Secured


def test_the_time_that_is_left_is_shown(tmp_path) -> None:
    """With the whole life, and whether other files wait."""
    registry = CollectorRegistry()
    machines = Machines(tmp_path)
    identity = Identity(machines.files)
    end = identity.material.validity.ends
    secured = Secured(identity, RoleTable({}), "required", 3600.0)
    CertificateMetrics(registry, "tidegate_test", secured, lambda: end - 60.0)
    sample = registry.get_sample_value
    assert sample("tidegate_test_certificate_left_seconds") == 60.0
    assert sample("tidegate_test_certificate_life_seconds") == pytest.approx(86_400.0)
    assert sample("tidegate_test_certificate_fault") == 0.0
    machines.files.key.write_text("broken")
    identity.look()
    identity.look()
    assert sample("tidegate_test_certificate_fault") == 1.0


def test_without_tls_there_is_no_sample() -> None:
    """A time that is not known is not 0."""
    registry = CollectorRegistry()
    CertificateMetrics(registry, "tidegate_test")
    assert [each.samples for each in registry.collect()] == [[], [], []]
