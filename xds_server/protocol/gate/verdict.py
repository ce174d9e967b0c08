"""Whether a stage has been answered, and whether refusals end its publication. Pure.

Rules:

1. A stage waits for each client of its audience that owes an answer and is not late (``patience``),
   but not for one that has never answered: it serves nothing yet, and follows stage by stage.
2. A refusal counts against the publication where its client has a veto and the stage can be taken
   back (``Client.has_veto``, ``PublicationRun.revocable``).
3. With ``rollback`` one such refusal ends the publication. The refusal of a client that has refused
   the last changes too (``Refusals.suspect``) does so only if no other client accepts: until then
   the stage waits for the others.
4. With ``quorum`` it ends once at least ``quorum`` of the voices are refusals. Clients that had a
   state before (``Client.had_state``) have one each, if they have refused, accepted or not answered
   yet, without those that are late or in quarantine. Others have one only where no client had a
   state: a process that begins anew under another node id each time never has.
5. Refusals of one type by clients of one kind (``Client.kin``) of which none accepts are one voice,
   however many there are: they say one thing. Where some of them accept, each has its own.
6. With ``keep`` a refusal at the switch, or after it, ends nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from xds_server.protocol.client import Client
    from xds_server.protocol.publication import PublicationRun, Stage

Verdict = Literal["pass", "wait", "abandon"]


def judge(run: PublicationRun, stage: Stage, clients: Iterable[Client], now: float) -> Verdict:
    """Return the verdict on the current stage; mark clients that have refused or are late.

    ``run.late_at`` and ``run.blocking`` are set to the client that will be late first.
    """
    run.late_at, run.blocking = float("inf"), 0
    mine = [client for client in clients if client.audience == stage.audience]
    accepted: list[Client] = []
    pending = [client for client in mine if client.left == "WAVE"]
    for client in mine:
        standing = client.standing
        if client.left:
            continue
        if standing.state == "NACKED" and standing.nacks > client.old_nacks:
            _note_refusal(run, stage, client, now)
        elif standing.state == "PENDING":
            late_at = min(client.late_at(stage.deadline_s), run.entered + stage.deadline_s)
            if client.unheard or now >= late_at:
                client.left, client.left_at = "NEW" if client.unheard else "STALLED", now
                continue
            pending.append(client)
            if late_at <= run.late_at:  # of several the last: answers come in order
                run.late_at, run.blocking = late_at, client.number
        elif standing.state == "SYNCED":
            accepted.append(client)
    _quarantine(mine, accepted, now)
    refused = [c for c in mine if c.left == "NACKED" and c.number in run.refused]
    if refused and run.revocable(stage):
        ends = _ends(run, refused, accepted, pending)
        if ends is not None:
            return "abandon" if ends else "wait"
    return "pass" if run.late_at == float("inf") else "wait"


def _note_refusal(run: PublicationRun, stage: Stage, client: Client, now: float) -> None:
    client.left, client.left_at = "NACKED", now
    before = run.before.get(stage.audience)
    type_url = client.standing.type_url
    version = "" if before is None else before.version(type_url)
    client.refusals.refused(type_url, version, client.standing.message)
    run.newly_refused.append(client.number)
    if client.has_veto(run):
        run.refused.add(client.number)


def _quarantine(clients: Iterable[Client], accepted: Collection[Client], now: float) -> None:
    for client in clients:
        if client.left != "NACKED" or not client.refusals.suspect:
            continue
        type_url = client.standing.type_url
        if any(other.stream.acknowledged(type_url) for other in accepted):
            client.refusals.quarantined = True
            client.left, client.left_at = "QUARANTINED", now


def _ends(
    run: PublicationRun,
    refused: Collection[Client],
    accepted: Collection[Client],
    pending: Collection[Client],
) -> bool | None:
    """Return whether the refusals end the publication; ``None`` = they do not, ``False`` = wait."""
    if run.on_reject == "quorum":
        if any(client.had_state for group in (refused, accepted, pending) for client in group):
            refused = [client for client in refused if client.had_state]
            accepted = [client for client in accepted if client.had_state]
            pending = [client for client in pending if client.had_state]
        voices = _voices(refused, accepted)
        least = run.quorum * (voices + len(accepted) + len(pending))
        return True if voices and voices >= least else None
    others_owe = run.late_at < float("inf")
    return not (others_owe and all(client.refusals.suspect for client in refused))


def _voices(refused: Collection[Client], accepted: Collection[Client]) -> int:
    """Return how many voices the refusals are (rule 5)."""
    split = {client.kin for client in accepted}
    alone = [client for client in refused if client.kin not in split]
    return len(refused) - len(alone) + len({(c.kin, c.standing.type_url) for c in alone})
