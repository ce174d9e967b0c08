"""When a stage begins and when it has been answered: its waves, the verdict, its drains. Pure.

Whether a stage has been answered, and whether refusals end its publication (``judge``):

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

from typing import TYPE_CHECKING, Final, Literal

from tidegate_api.names import POOL_TYPE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from xds_server.protocol.client import Client
    from xds_server.protocol.publication import PickerLoad, PublicationRun, Stage

MAX_TRIES: Final = 3
"""Most Envoys on which a stage is tried, one after the other."""


class Waves:
    """The waves of the current stage: it goes to one Envoy, then to its node group, then to all.

    Rules:

    1. The wave *one* is the first Envoy, by node group and node id, that can tell: it holds the
       stage before, has answered on this connection before, and has refused nothing of late.
    2. When it has accepted, the wave *group* follows: the other Envoys of its node group. When
       these have answered or are late, the wave *all* follows: all others, with those that could
       not tell.
    3. If the wave *one* does not accept although the publication goes on, another Envoy takes its
       place, at most ``MAX_TRIES`` Envoys in all. Then, or if there is none, the stage goes to all.
    4. Until its wave an Envoy stays on the stage before, also one that connects meanwhile.
    """

    def __init__(self) -> None:
        self._wave: Literal["one", "group", "all"] = "all"
        self._group = ""
        self._first = 0
        self._tries = 0

    @property
    def open(self) -> bool:
        """The stage has not come to all Envoys yet."""
        return self._wave != "all"

    def close(self) -> None:
        """End the waves: the stage is for all."""
        self._wave = "all"

    def begin(self, waiting: Iterable[Client]) -> Collection[Client]:
        """Return the first wave of a new stage; all of ``waiting`` if none of them can tell."""
        self._tries = 0
        return self._one(list(waiting))

    def following(self, clients: Mapping[int, Client]) -> Collection[Client]:
        """Return the next wave; called when the one before was answered.

        Args:
            clients: All connected clients by number.
        """
        waiting = [client for client in clients.values() if client.left == "WAVE"]
        if self._wave == "one":
            first = clients.get(self._first)
            if first is None or first.left or first.standing.state != "SYNCED":
                return self._one(waiting)
            group = [client for client in waiting if client.group == self._group]
            if group:
                self._wave = "group"
                return group
        self._wave = "all"
        return waiting

    def _one(self, waiting: list[Client]) -> Collection[Client]:
        able = [client for client in waiting if _can_tell(client)]
        if not able or self._tries >= MAX_TRIES:
            self._wave = "all"
            return waiting
        self._tries += 1
        first = min(able, key=lambda client: (client.group, client.node, client.number))
        self._wave, self._group, self._first = "one", first.group, first.number
        return (first,)


def _can_tell(client: Client) -> bool:
    debt = client.debt
    answered = debt.slowest_s is not None and not (debt.known_late or debt.unsteady)
    trusted = not client.refusals.count and not client.refusing
    return client.standing.state == "SYNCED" and answered and trusted


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


REPORT_PATIENCE_S: Final = 5.0
"""A picker that has lost its report stream opens a new one within 2 s."""


class Drains:
    """The pickers' last reports: draining endpoints are left to finish their requests.

    Rules:

    1. A stage that waits begins when the pickers report no requests in flight on its endpoints, or
       at its hold deadline. Without pickers nothing is in flight.
    2. A connected picker's zero counts once its report names the response that the picker
       acknowledged last: an older one may lack its last picks. Such a report is waited for
       ``REPORT_PATIENCE_S``.
    """

    def __init__(self) -> None:
        self._loads: dict[str, PickerLoad] = {}

    def reported(self, reports: Mapping[str, PickerLoad]) -> None:
        """Replace the last report of each reporting picker, by node id."""
        self._loads = dict(reports)

    def waits(self, stage: Stage, pickers: Collection[Client]) -> bool:
        """Return whether a stage waits for reports at all."""
        return bool(stage.wait_for_drained) and (bool(self._loads) or bool(pickers))

    def held_until(self, stage: Stage, since: float, pickers: Collection[Client]) -> float:
        """Return when a stage begins if no further report arrives, monotonic seconds.

        Args:
            stage: The stage.
            since: When the stage before it was answered.
            pickers: The connected pickers that publications wait for.
        """
        until = since + stage.grace_s
        if not self.waits(stage, pickers):
            return until
        patience = since + stage.hold_deadline_s
        if self._drained(stage):
            waited = 0.0 if self._all_reported(pickers) else REPORT_PATIENCE_S
            patience = min(patience, since + waited)
        return max(until, patience)

    def _drained(self, stage: Stage) -> bool:
        ids = stage.wait_for_drained
        return not any(load.in_flight.get(id_) for load in self._loads.values() for id_ in ids)

    def _all_reported(self, pickers: Collection[Client]) -> bool:
        """Return whether each picker has reported since it applied its last response."""
        for client in pickers:
            load = self._loads.get(client.node)
            if load is None or load.taken != client.stream.acknowledged(POOL_TYPE):
                return False
        return True
