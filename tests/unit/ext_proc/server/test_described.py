"""Replies that describe a pick to access logs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.exchange import Pick, ReplyBody, ReplyHead
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.server import described
from ext_proc.server.wire import Writer
from support.streams import Answer

COUNTS = st.integers(0, 2**40)


def pick(ticket: str, prompt: int | None, predicted: int, *, reason: str = "prefix") -> Pick:
    """Return a described pick."""
    return Pick(
        "10.0.0.1:80",
        (("x-gateway-destination-endpoint", "10.0.0.1:80"),),
        clear_route_cache=False,
        ticket=ticket,
        decision=Decision(None, ("10.0.0.1:80",), "llm", "stable", reason),
        prompt_blocks=0,
        prompt_tokens=prompt,
        matched_tokens=predicted,
        described=True,
    )


def told(writer: Writer, found: Pick, *, body: bool = False) -> dict[str, object]:
    """Return our metadata of a reply as values."""
    data = writer.write(ReplyBody(found) if body else ReplyHead(found))
    fields = Answer.of(data).message.dynamic_metadata.fields["tidegate"].struct_value
    return {key: fields[key] for key in fields}


@given(
    number=st.integers(0, 10**18 - 1),
    prompt=COUNTS | st.none(),
    predicted=COUNTS,
    body=st.booleans(),
    reason=st.sampled_from(["prefix", "least"]),
)
def test_a_cached_reply_has_the_values_of_its_pick(
    number: int, prompt: int | None, predicted: int, body: bool, reason: str
) -> None:
    """Whatever pick came before it; a prompt that was not read has no counts."""
    writer = Writer("picker-1", "10.0.0.9:1", "life-", "3")
    for one in (pick("0" * len(str(number)), 7, 7), pick(str(number), prompt, predicted)):
        one.decision.reason = reason
        found = told(writer, one, body=body)
    assert (found["ticket"], found["slot"]) == (f"life-{number}", "3")
    why = found["told"]
    assert (why["pool"], why["variant"], why["reason"]) == ("llm", "stable", reason)  # type: ignore[index]
    counts = {} if prompt is None else {"prompt_tokens": prompt, "predicted_tokens": predicted}
    assert {k: v for k, v in dict(why).items() if k.endswith("_tokens")} == counts  # type: ignore[call-overload]


def test_a_pick_is_not_described_unless_its_pool_asks() -> None:
    """Without an access log the metadata costs nothing."""
    plain = pick("7", 5, 3)
    plain.described = False
    assert "told" not in told(Writer("picker-1"), plain)


def test_the_cache_is_bounded(monkeypatch) -> None:
    """Beyond the bound it begins anew, and replies stay right."""
    monkeypatch.setattr(described, "MAX_FRAMES", 2)
    writer = Writer("picker-1")
    for number in range(5):
        found = told(writer, pick("7", 5, 3, reason=f"reason-{number}"))
        assert found["told"]["reason"] == f"reason-{number}"  # type: ignore[index]
    assert len(writer._described) <= 2
