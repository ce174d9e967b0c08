"""Field types of the fleet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec, VariantMatch
from xds_server.fleet.model.resilience import HealthSpec, OutlierSpec, SlowStartSpec
from xds_server.fleet.model.routing import Routing


@given(st.floats(min_value=0, max_value=86_400, allow_nan=False))
def test_a_duration_survives_being_printed(seconds: float) -> None:
    """An unchanged fleet must not look changed after a round trip."""
    value = SlowStartSpec(window=seconds)
    assert SlowStartSpec.model_validate(value.model_dump()) == value


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("1.5s", 1.5), ("2m", 120.0), ("1h", 3600.0), (7, 7.0)],
)
def test_durations_are_written_with_units(text: object, seconds: float) -> None:
    """Every documented unit is read."""
    assert SlowStartSpec.model_validate({"window": text}).window == seconds


@pytest.mark.parametrize("text", ["5", "5 s", "x", "-1s", "25h"])
def test_other_durations_are_rejected(text: str) -> None:
    """A number without a unit in quotes, or one out of range, is no duration."""
    with pytest.raises(ValidationError):
        SlowStartSpec.model_validate({"window": text})


def test_an_interval_is_above_zero() -> None:
    """Envoy rejects health checks without an interval."""
    with pytest.raises(ValidationError):
        HealthSpec(interval=0)


@pytest.mark.parametrize("factor", [0, 1, 10])
def test_a_latency_factor_is_off_or_at_least_one(factor: float) -> None:
    """Below one every replica would be slower than its peers."""
    assert OutlierSpec(latency_factor=factor).latency_factor == factor
    with pytest.raises(ValidationError, match="at least 1"):
        OutlierSpec(latency_factor=0.5)


@pytest.mark.parametrize(
    "address", ["localhost:80", "1.2.3.4", "1.2.3.4:0", "::1:80", "[1.2.3.4]:1"]
)
def test_bad_addresses_are_rejected(address: str) -> None:
    """Envoy's endpoints are IP addresses with a port."""
    with pytest.raises(ValidationError, match="is no address"):
        EndpointSpec(http=address)


def test_an_address_gets_its_canonical_form() -> None:
    """The picker compares addresses as text, so each has one form."""
    assert EndpointSpec(http="[0:0:0:0:0:0:0:1]:80").http == "[::1]:80"


def test_an_endpoint_is_named_by_its_address() -> None:
    """Without an id the gRPC address names the replica, else the HTTP one."""
    assert EndpointSpec.model_validate({"grpc": "1.2.3.4:1", "http": "1.2.3.4:2"}).id == "1.2.3.4:1"
    assert EndpointSpec.model_validate({"http": "1.2.3.4:2"}).id == "1.2.3.4:2"


def test_pins_on_reserved_headers_are_rejected() -> None:
    """Envoy strips them from requests, so such a pin would never match."""
    with pytest.raises(ValidationError, match="reserved"):
        VariantMatch(headers={"x-tidegate-variant": "canary"})


def test_the_first_variant_takes_endpoints_without_one() -> None:
    """An endpoint without a variant belongs to the pool's first variant."""
    pool = PoolSpec.model_validate({"name": "a", "match": {}, "endpoints": [{"http": "1.2.3.4:1"}]})
    assert pool.variant_of(pool.endpoints[0]) == "stable"


def test_unknown_fields_are_rejected() -> None:
    """A typing error must not be ignored."""
    with pytest.raises(ValidationError, match="Extra"):
        Fleet.model_validate({"pools": [], "pool": []})


def test_a_policy_of_a_package_is_known_by_the_form_of_its_name():
    """Only pickers have the package; what resembles a name of ours is still a mistake."""
    routing = Routing.model_validate({"policy": "acme.own", "allow_override": ["auto", "acme.own"]})
    assert Routing.model_validate_json(routing.model_dump_json()) == routing
    for wrong in ("lest-request", "acme.Own", "acme.own.two", ".own", 5):
        with pytest.raises(ValidationError, match="Input should be 'auto'"):
            Routing.model_validate({"policy": wrong})
