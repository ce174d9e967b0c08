"""The verdict is a pure function of what is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from xds_server.applications.traffic.verdict import (
    KINDS,
    MAX_REASONS,
    RULES,
    CertificateState,
    ClientState,
    PoolView,
    ReplicaView,
    Situation,
    VariantView,
    Word,
    verdict,
)

PICKER = ClientState("picker-1", "picker", "", 0.0, "")
PAGE = Path(__file__).resolve().parents[5] / "docs" / "reference" / "status.md"


def pool(
    *variants: tuple[int, int, int], requests: int = 0, failed: int = 0, refused: int = 0
) -> PoolView:
    """Return a pool; each variant is weight, replicas and usable ones."""
    views = [VariantView(f"v{n}", *each) for n, each in enumerate(variants or [(1, 2, 2)])]
    return PoolView("llm", views, requests, failed, refused)


def seen(*pools: PoolView, **more: object) -> Situation:
    """Return a situation with one picker, and nothing wrong but these."""
    return Situation(**{"pools": pools or (pool(),), "clients": (PICKER,), **more})  # type: ignore[arg-type]  # a test's shortcut


SICK = ReplicaView("llm", "r1", "frozen 4 s more", left_alone=True)


@pytest.mark.parametrize(
    ("situation", "word", "why"),
    [
        (seen(), Word.OK, "all replicas are usable"),
        (seen(pool((1, 2, 0))), Word.OUTAGE, "pool llm: none of 2 replicas is usable"),
        (seen(pool((1, 2, 2), (0, 2, 0))), Word.OK, "all replicas"),
        (seen(pool((0, 2, 0))), Word.OK, "all replicas"),
        (
            seen(pool((95, 2, 2), (5, 1, 0))),
            Word.DEGRADED,
            "pool llm: variant v1 (5% of its requests) has no usable replica",
        ),
        (seen(pool(requests=10, failed=5)), Word.OUTAGE, "5 of 10 requests failed"),
        (seen(pool(requests=5, failed=4)), Word.OK, "all replicas"),
        (seen(pool(requests=500, failed=5)), Word.DEGRADED, "5 of 500 requests failed"),
        (seen(pool(requests=501, failed=5)), Word.OK, "all replicas"),
        (seen(versions=["pool llm: r1 2"]), Word.DEGRADED, "pool llm: r1 2"),
        (seen(pool(requests=95, refused=5)), Word.DEGRADED, "5 of 100 requests (5%) were refused"),
        (
            seen(pool(requests=493), passed={"no-body": 2, "too-late": 5}),
            Word.DEGRADED,
            "7 requests got no pick in the last minute: too-late (5), no-body (2)",
        ),
        (seen(pool(requests=0), passed={"too-late": 4}), Word.OK, "all replicas"),
        (seen(pool(requests=996), passed={"too-late": 5}), Word.OK, "all replicas"),
        (
            seen(relief={"p": 1}),
            Word.DEGRADED,
            "the CPU of picker p does not suffice: it leaves out prompts and prices",
        ),
        (seen(relief={"p": 2}), Word.DEGRADED, "and some picks"),
        (
            seen(missing={"p": ["10.0.0.2:18091: it does not answer"]}),
            Word.DEGRADED,
            "picker p misses members of its group: 10.0.0.2:18091: it does not answer",
        ),
        (seen(replicas=(SICK,)), Word.DEGRADED, "replica r1 of pool llm is frozen 4 s more"),
        (
            seen(clients=(PICKER, ClientState("e", "envoy", "CDS", 99.0, ""))),
            Word.DEGRADED,
            "envoy e rejects the fleet in force (CDS)",
        ),
        (
            seen(clients=(PICKER, ClientState("e", "envoy", "", 0.0, "refused 3 changes"))),
            Word.DEGRADED,
            "envoy e is in quarantine",
        ),
        (
            seen(clients=(PICKER, ClientState("e", "envoy", "", 10.0, ""))),
            Word.DEGRADED,
            "envoy e has not acknowledged a change for 10 s",
        ),
        (seen(clients=()), Word.DEGRADED, "no picker is connected"),
        (seen(pickers=3), Word.DEGRADED, "only 1 of 3 pickers are connected"),
        (seen(clients=(PICKER, PICKER), pickers=1), Word.OK, "all replicas"),
        (
            seen(replicas=(SICK._replace(words="silent", left_alone=False),)),
            Word.DEGRADED,
            "replica r1 of pool llm is silent",
        ),
        (seen(file_error="line 3:\n bad"), Word.DEGRADED, "not in force: line 3: bad"),
        (seen(refusal="revision 3 was refused"), Word.DEGRADED, "revision 3 was refused"),
        (seen(store_error="disk full"), Word.DEGRADED, "cannot be stored: disk full"),
        (seen(sources=("pool llm: dns:x: no answer",)), Word.DEGRADED, "no answer"),
        (
            seen(certificates=(CertificateState("envoy e", 86_000.0),)),
            Word.DEGRADED,
            "the certificate of envoy e ends in 24 h",
        ),
        (
            seen(certificates=(CertificateState("envoy e", 1_000_000.0),)),
            Word.DEGRADED,
            "the certificate of envoy e ends in 12 days",
        ),
        (
            seen(certificates=(CertificateState("envoy e", 600.0),)),
            Word.DEGRADED,
            "the certificate of envoy e ends in 10 min",
        ),
        (
            seen(certificates=(CertificateState("envoy e", -1.0),)),
            Word.DEGRADED,
            "the certificate of envoy e has ended",
        ),
        (
            seen(certificates=(CertificateState("the control server", 1e7, "half a file"),)),
            Word.DEGRADED,
            "the new certificate of the control server is not in force: half a file",
        ),
        (seen(held=("pool llm: 3 of 4 vanished",)), Word.DEGRADED, "3 of 4 vanished"),
    ],
)
def test_the_word_and_the_sentence(situation: Situation, word: Word, why: str) -> None:
    """Each row of the table on the page, and the values beside its bounds."""
    found = verdict(situation)
    assert found.word is word
    assert why in found.why
    assert "\n" not in found.why


def test_the_weightiest_reason_speaks() -> None:
    """The others are counted, and listed after it."""
    found = verdict(seen(pool((1, 2, 0)), replicas=(SICK,), store_error="disk full"))
    assert (found.word, found.level) == (Word.OUTAGE, 2)
    assert found.why == "pool llm: none of 2 replicas is usable (and 2 more)"
    assert found.reasons[1:] == [
        "replica r1 of pool llm is frozen 4 s more",
        "revisions cannot be stored: disk full",
    ]


def test_reasons_are_bounded() -> None:
    """A fleet of a thousand sick replicas makes a page of reasons, not a book."""
    assert len(verdict(seen(replicas=[SICK] * 1000)).reasons) == MAX_REASONS


def test_the_page_has_a_row_for_each_rule() -> None:
    """In the same order, with the same word, and the kind that alerts and logs name."""
    table = PAGE.read_text().split("<!-- verdict -->")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if "| `" in line[:4]]
    told = [tuple(cell.strip(" `") for cell in row) for row in rows]
    assert told == [(str(rule.word), kind) for rule, kind in zip(RULES, KINDS, strict=True)]


def test_reasons_are_counted_by_kind() -> None:
    """Also those that are not listed."""
    found = verdict(seen(replicas=[SICK] * 1000, store_error="disk full"))
    assert {kind: len(each) for kind, each in found.kinds.items()} == {
        "left-alone": 1000,
        "store": 1,
    }
