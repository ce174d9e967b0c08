"""Fleet files and their errors."""

from __future__ import annotations

import pytest

from tidegate_api.pools import MAX_VARIANTS
from xds_server.fleet.load import MAX_FAULTS, FleetError, load_text

GOOD = """\
pools:
- name: llm
  match: {models: [toy]}
  endpoints:
  - {id: r1, grpc: "127.0.0.1:8001"}
"""


def faults(text: str) -> list[str]:
    """Return the printed faults of a file."""
    with pytest.raises(FleetError) as caught:
        load_text(text, "fleet.yaml")
    return str(caught.value).splitlines()


def with_pool(lines: str) -> str:
    """Return the good file with more lines in its pool."""
    return GOOD + lines


def test_a_fleets_json_can_be_loaded() -> None:
    """The answer of GetFleet can be applied."""
    fleet = load_text(GOOD)
    assert load_text(fleet.model_dump_json()) == fleet


def test_a_fault_has_file_line_place_and_fix() -> None:
    """The error suffices to correct the file."""
    (fault,) = faults(GOOD.replace("127.0.0.1:8001", "localhost:8001"))
    assert fault == (
        "fleet.yaml:5: pools[0].endpoints[0].grpc: 'localhost:8001' is no address; "
        "write ip:port, for example 127.0.0.1:8001 or [::1]:8001"
    )


def test_rules_have_lines_too() -> None:
    """Problems of several fields are reported like those of a single one."""
    (fault,) = faults(GOOD.replace("{models: [toy]}", "{models: [toy, toy]}"))
    assert fault.startswith("fleet.yaml:3: pools[0].match.models[1]: ")


@pytest.mark.parametrize("match", ["{}", "{models: []}", None])
def test_a_pool_without_a_match_takes_any_model(match: str | None) -> None:
    """Nothing has to be known of paths: those of engines are opened."""
    text = GOOD.replace("  match: {models: [toy]}\n", f"  match: {match}\n" if match else "")
    assert text != GOOD
    (pool,) = load_text(text, "fleet.yaml").pools
    assert pool.match.models == ()
    assert "/v1/chat/completions" in pool.match.paths


def test_all_faults_are_reported_at_once() -> None:
    """One round of corrections suffices."""
    text = with_pool("  nmae: x\n  routing: {policy: best}\n  health: {interval: soon}\n")
    assert [fault.split(": ")[1] for fault in faults(text)] == [
        "pools[0].routing.policy",
        "pools[0].health.interval",
        "pools[0].nmae",
    ]


def test_reported_faults_are_bounded() -> None:
    """A file with many faults gives a bounded report."""
    many = "pools:\n" + "- {}\n" * 2 * MAX_FAULTS
    printed = faults(many)
    assert len(printed) == MAX_FAULTS + 1
    assert printed[-1] == f"... and {MAX_FAULTS} more"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("  rooting: {}\n", "did you mean 'routing'?"),
        ("  variants: [{name: a, zzz: 1}]\n", "known are name, weight, model_version, match"),
        ("  variants: [{name: a, model_version: 1}]\n", 'write "1" in quotes'),
        ("  variants: [{name: a, model_version: v1}]\n", "a version number in quotes"),
        ("  variants: [{name: Stable}]\n", "lower-case letters"),
        ("  variants: []\n", "write at least one entry"),
        ("  variants: [" + "{name: a}, " * 257 + "]\n", "more than 256 entries; remove some"),
        ("  variants: [{weight: 1}]\n", "missing; write `name:` here"),
        ("  variants: stable\n", "where a list belongs"),
        ("  routing: [x]\n", "a list stands where a mapping belongs"),
        ("  routing: {policy: best}\n", "'best' is none of 'auto'"),
        ("  routing: {fallbacks: 9}\n", "9: input should be less than or equal to 8"),
        ("  canary: {window: 5m}\n", "'5m': input should be less than or equal to 60 seconds"),
        ("  canary: {steps: [5, 50]}\n", "pools[0].canary: `steps` must rise and end with 100"),
        ("  routing: {max_body: null}\n", "nothing (null): input should be a valid integer"),
        ("  default: maybe\n", "'maybe': input should be a valid boolean"),
        ("  health: {path: 5}\n", 'write "5" in quotes'),
        ("  slow_start: {window: 5 minutes}\n", "is no duration"),
        ("  variants: [{name: a, match: {headers: {X-A: b}}}]\n", "a header name in lower case"),
        ("  variants: [{name: a, match: {headers: {x-envoy-a: b}}}]\n", "is reserved"),
    ],
)
def test_a_fault_states_the_correction(lines: str, words: str) -> None:
    """The messages are Tidegate's, not the validator's."""
    assert any(words in fault for fault in faults(with_pool(lines)))


def test_an_omitted_id_is_not_a_fault_of_its_own() -> None:
    """The invalid address, from which the id is derived, is reported once."""
    (fault,) = faults(GOOD.replace('{id: r1, grpc: "127.0.0.1:8001"}', '{grpc: "a b"}'))
    assert ".grpc:" in fault


def test_an_endpoint_without_address_is_reported() -> None:
    """It cannot be reached."""
    assert "needs `grpc`, `http` or both" in faults(GOOD.replace("grpc:", "zone:"))[0]


def test_a_text_that_is_no_mapping_is_reported() -> None:
    """A list of pools without `pools:` is a common error."""
    assert faults("- name: llm") == [
        "fleet.yaml:1: a list stands where a mapping belongs; write `key: value` lines"
    ]


def test_long_values_are_shortened() -> None:
    """A fault stays one readable line."""
    (fault,) = faults(GOOD.replace("name: llm", f"name: {'X' * 500}"))
    assert len(fault) < 250


def test_lone_surrogates_are_a_fault() -> None:
    """Text that cannot be encoded is rejected instead of failing later."""
    assert faults(GOOD.replace("[toy]", '["\\ud800"]'))


def test_variants_up_to_the_bound_are_accepted() -> None:
    """Every pair of a pool's variants may have to be compared, so their number is bounded."""
    variants = [f"{{name: v{i}, weight: {int(not i)}}}" for i in range(MAX_VARIANTS)]
    fleet = load_text(with_pool(f"  variants: [{', '.join(variants)}]\n"))
    assert len(fleet.pools[0].variants) == MAX_VARIANTS
