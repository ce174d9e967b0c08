"""Settings of workers, derived from those of one picker."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ext_proc.__main__ import main
from ext_proc.settings import EXIT_USAGE, PickerSettings
from ext_proc.workers.plan import PlanError, plan


def settings(**changes) -> PickerSettings:
    return PickerSettings.model_validate({"id": "p", **changes})


def test_one_process_is_as_it_was():
    """Without workers nothing changes, including the id."""
    one = settings()
    assert plan(one) == [one]


def test_ports_are_counted_up():
    """Each worker has its own id, port and page."""
    made = plan(settings(workers=3, listen="[::1]:5000", metrics="127.0.0.1:6000"))
    assert [each.id for each in made] == ["p.w0", "p.w1", "p.w2"]
    assert [each.listen for each in made] == ["[::1]:5000", "[::1]:5001", "[::1]:5002"]
    assert [each.metrics.rpartition(":")[2] for each in made] == ["6000", "6001", "6002"]
    assert {each.workers for each in made} == {1}
    assert {each.advertise for each in made} == {None}


def test_addresses_may_be_listed():
    """If one is listed for each worker they are used unchanged."""
    made = plan(settings(workers=2, listen="a:1,b:2", metrics="c:3,c:9", advertise="d:4"))
    assert [(each.listen, each.metrics, each.advertise) for each in made] == [
        ("a:1", "c:3", "d:4"),
        ("b:2", "c:9", "d:5"),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 3, "listen": "a:1,b:2"}, "--listen a:1,b:2: 2 addresses for 3 workers"),
        ({"listen": "a:1,b:2"}, "2 addresses for 1 workers"),
        ({"workers": 2, "listen": "a:0"}, "need 2 consecutive, fixed ports"),
        ({"workers": 2, "metrics": "a:65535"}, "choose a port from 1 to 65534"),
        ({"workers": 3, "listen": "a:80", "metrics": "a:82"}, "a:82 would be used twice"),
        ({"workers": 2, "listen": "a:80,a:80"}, "a:80 would be used twice"),
    ],
)
def test_bad_addresses_are_named(changes, message):
    """Each error names the option, the fault and the remedy."""
    with pytest.raises(PlanError, match=message.replace("+", r"\+")):
        plan(settings(**changes))


def test_a_bad_plan_ends_with_2(capsys):
    """The command line prints it in one line and starts nothing."""
    assert main(["--workers", "2", "--listen", "127.0.0.1:0"]) == EXIT_USAGE
    assert capsys.readouterr().err.startswith("--listen 127.0.0.1:0: 2 workers need")


TLS = {"tls_cert": "/c", "tls_key": "/k", "tls_ca": "/a"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_members": "a:1"}, "--group-members needs --group-listen"),
        ({"group_listen": "a:1"}, "--group-listen needs --tls-cert"),
        ({"group_listen": "0.0.0.0:1", **TLS}, "cannot reach 0.0.0.0; give the address"),
        (
            {"group_listen": "a:1", "group_members": ",".join(["a:1"] * 65), **TLS},
            "65 addresses; at most 64",
        ),
    ],
)
def test_a_group_that_cannot_be_is_refused(changes, message):
    """Each error names the option, the fault and the remedy."""
    with pytest.raises(ValidationError, match=message):
        settings(**changes)
