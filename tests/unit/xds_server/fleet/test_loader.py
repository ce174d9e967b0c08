"""Loading in parts: the result of any text is the one of loading it as a whole."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.tries import tries
from xds_server.fleet import document
from xds_server.fleet import load as loader_module
from xds_server.fleet.load import FleetError, FleetLoader, load_text

FILE = """\
# The fleet of the tests.
listener: {address: "127.0.0.1:10000"}
pools:
- name: a
  match: {models: [ma]}
  endpoints:
  - id: a1
    http: 10.0.0.1:8000
  - {id: a2, http: "10.0.0.2:8000"}
- name: b
  # A comment
  match:
    models:
    - mb
  endpoints:
  - id: b1
    http: 10.0.1.1:8000
  drop_overload: 1
on_reject: keep
"""


def outcome(load, text: str) -> object:
    """Return the fleet of a text, or its faults."""
    try:
        return load(text)
    except FleetError as error:
        return str(error)


def test_unedited_pools_and_endpoints_are_the_same_objects() -> None:
    """All that follows a change recognises them by identity."""
    loader = FleetLoader()
    first = loader.load(FILE)
    second = loader.load(FILE.replace("10.0.0.2", "10.0.0.3"))
    assert second.pools[1] is first.pools[1]
    assert second.pools[0] is not first.pools[0]
    assert second.pools[0].endpoints[0] is first.pools[0].endpoints[0]
    assert second == load_text(FILE.replace("10.0.0.2", "10.0.0.3"))


def test_an_ordinary_file_is_not_parsed_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the loader would be right and slow."""
    monkeypatch.setattr(loader_module, "load_text", lambda *_: pytest.fail("parsed as a whole"))
    loader, parsed = FleetLoader(), []
    loader.load(FILE)
    monkeypatch.setattr(
        loader_module,
        "_endpoint",
        lambda text, real=loader_module._endpoint: (parsed.append(text), real(text))[1],
    )
    loader.load(FILE.replace("10.0.1.1", "10.0.1.2"))
    assert parsed == ["  - id: b1\n    http: 10.0.1.2:8000\n"]


def test_what_is_remembered_is_bounded_by_the_last_text() -> None:
    """A loader that sees a thousand texts keeps the parts of one."""
    loader = FleetLoader()
    for number in range(1, 50):
        loader.load(FILE.replace("10.0.1.1", f"10.0.1.{number}"))
    assert len(loader._pools) == 2
    assert [len(pool.endpoints) for pool in loader._pools.values()] == [2, 1]


def test_equal_objects_are_taken_over_from_a_text_of_another_form() -> None:
    """JSON is parsed as a whole; its equal pools are the same objects nevertheless."""
    loader = FleetLoader()
    first = loader.load(FILE)
    second = loader.load(first.model_dump_json())
    assert second.pools[0] is first.pools[0]
    assert second.listener is first.listener


def test_the_bound_on_values_counts_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is refused at the same size as if it were read as a whole."""
    exact = document.parse(FILE).values
    monkeypatch.setattr(document, "MAX_VALUES", exact)
    FleetLoader().load(FILE)
    monkeypatch.setattr(document, "MAX_VALUES", exact - 1)
    with pytest.raises(FleetError, match="more than"):
        FleetLoader().load(FILE)


def test_the_count_of_values_in_parts_is_the_count_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bound is checked in parts too, without a second reading."""
    monkeypatch.setattr(loader_module, "load_text", lambda *_: pytest.fail("not in parts"))
    monkeypatch.setattr(document, "MAX_VALUES", document.parse(FILE).values)
    FleetLoader().load(FILE)


QUOTED = 'listener: {address: "127.0.0.1:10000"}\nx: "\npools:\n- name: a\n"\n'
SNIPPETS = (
    "pools:\n",
    "- name: a\n",
    "- name: c\n",
    "  endpoints:\n",
    "  - id: a1\n",
    '  - {id: n, http: "10.0.9.9:1"}\n',
    "    http: 10.0.0.1:8000\n",
    "# comment\n",
    "   # deeper\n",
    "\n",
    "  - &x {id: q}\n",
    "  - *x\n",
    "  <<: {default: true}\n",
    "---\n",
    "...\n",
    '  y: "open\n',
    "  z: [1,\n",
    "  labels: |\n",
    "    - text\n",
    "- tidegate-placeholder\n",
    "  - tidegate-placeholder\n",
    "on_reject: keep\n",
    "\tx: 1\n",
    "  capacity: 2\n",
    "-\n",
    "- \n",
    "  default: true\n",
    "'\n",
    '"\n',
    "]\n",
    "  endpoints: []\n",
    "    capacity: 2\n",
    "? a\n",
    "!!str x\n",
    "  match: {models: [mz]}\n",
)


@st.composite
def edited(draw) -> str:
    """Draw the file with some of its lines removed, moved, repeated, or replaced by snippets."""
    lines = FILE.splitlines(keepends=True)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(lines)))
        kind = draw(st.sampled_from(("insert", "remove", "repeat", "indent", "digit")))
        if kind == "insert" or at >= len(lines):
            lines.insert(at, draw(st.sampled_from(SNIPPETS)))
        elif kind == "remove":
            del lines[at]
        elif kind == "repeat":
            lines[at:at] = lines[at : at + draw(st.integers(1, 4))]
        elif kind == "indent":
            lines[at] = draw(st.sampled_from(("", " ", "  "))) + lines[at].lstrip(" ")
        else:
            lines[at] = lines[at].replace("1", draw(st.sampled_from("1234")))
    return "".join(lines)


@settings(max_examples=tries(100), deadline=None)
@given(walk=st.lists(edited(), min_size=1, max_size=4))
@example([QUOTED, QUOTED + FILE])
@example([FILE, FILE.replace("\n", "\r\n")])
@example([FILE.replace("- {id: a2", "- &e {id: a2") + "x: *e\n"])
@example([FILE + "- name: late\n"])
@example(['{"a": "\npools:\n- name: q\n", "pools": ["tidegate-placeholder"]}'])
def test_any_walk_of_texts_loads_as_if_each_were_the_first(walk: list[str]) -> None:
    """Fleets and faults are equal, whatever was loaded before."""
    loader = FleetLoader()
    for text in walk:
        assert outcome(loader.load, text) == outcome(load_text, text)


def test_a_cut_needs_the_proof_of_its_placeholder() -> None:
    """Text inside of a quoted scalar may look like a list."""
    cut = loader_module._cut('x: "\npools:\n- a\n"\n', "\npools:\n", ())
    assert cut is not None
    assert not cut.proved(document.parse(cut.rest).root.child("pools"))
