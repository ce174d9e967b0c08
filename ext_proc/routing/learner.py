"""The learner: trains the latency models and learning policies from finished requests.

Rules:

1. Each replica has one latency model per pool, and each pool has a fleet latency model. Both are
   kept across changes of the pool's policy, weights or limits.
2. Requests that were retried, moved or lost give no first-byte time. Requests without a prompt
   give their duration only.
3. Nor are speeds learned from requests whose uncached tokens are unknown (``Ticket.coming``).
4. Learning policies are called with each settled request of their pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.latency.model import UNSURE, FleetLatencyModel
from ext_proc.routing.latency.progress import Progress
from ext_proc.routing.values.ticket import DONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ext_proc.routing.policies import Policy
    from ext_proc.routing.state.candidates import Replica
    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.routing.values.reading import Reading
    from ext_proc.routing.values.ticket import Outcome, Ticket


MAX_PENDING: Final = 8_192


class Learner:
    """Trains latency models and learning policies.

    Args:
        replicas: Live view of the registered replicas, by identity.
    """

    def __init__(self, replicas: Mapping[EndpointKey, Replica]) -> None:
        self._replicas = replicas
        self._pending: dict[int, Ticket] = {}
        """Tickets of the latest streamed requests until their first byte is known, by id; at most
        ``MAX_PENDING``. The access log tells a first byte within about a second."""
        self.progress = Progress()
        """Prompts that replicas have not computed yet, by their pages."""
        self.models: dict[str, FleetLatencyModel] = {}
        """The fleet latency model of each pool, by the pool's name."""
        self.policies: dict[str, tuple[Policy, ...]] = {}
        """The learning policies of each pool, by the pool's name."""

    def set_pools(self, names: Iterable[str], policies: Mapping[str, Mapping[str, Policy]]) -> None:
        """Set the names of all pools and their policies; known pools keep their models."""
        models = {name: self.models.get(name) or FleetLatencyModel() for name in names}
        self.models.clear()
        self.models.update(models)
        self.policies = {
            name: learners
            for name, made in policies.items()
            if (learners := tuple([each for each in made.values() if each.learns]))
        }

    def seconds_per_token(self, pool: str, endpoint: EndpointKey) -> float:
        """Return the seconds of prefill per token on a replica of a pool, 0 if unknown."""
        fleet = self.models.get(pool)
        model = self._replicas[endpoint].latency_models.get(pool)
        return 0.0 if fleet is None or model is None else fleet.seconds_per_token * model.slowness

    def rescale(self, pool: str, factor: float, ticket: int) -> None:
        """Note that a pool's prompts are taken to have ``factor`` times as many tokens.

        Args:
            pool: The pool.
            factor: New tokens for each old one.
            ticket: The latest ticket whose tokens are old ones.
        """
        fleet = self.models.get(pool)
        if fleet is None:
            return
        fleet.rescale(factor, ticket)
        for replica in self._replicas.values():
            model = replica.latency_models.get(pool)
            if model is not None:
                model.rescale(factor)
                replica.clock_per_token /= factor

    def sent(self, ticket: Ticket, expected_s: float, cold_s: float) -> None:
        """Note a streamed request with a prompt that was just sent.

        Args:
            ticket: The request.
            expected_s: Expected seconds from now to its first byte, at most.
            cold_s: Expected seconds for its prompt on an idle replica with an empty cache.
        """
        if len(self._pending) >= MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        self._pending[ticket.id] = ticket
        if not self.models[ticket.pool].judges:
            expected_s, cold_s = UNSURE * expected_s, UNSURE * cold_s
        self._replicas[ticket.endpoint].first_bytes.note(ticket, expected_s, cold_s)

    def moved(self, ticket: Ticket, now: float) -> None:
        """Note that another replica serves a request, so its pick gives no first-byte sample."""
        first_bytes = self._replicas[ticket.endpoint].first_bytes
        first_bytes.gone(ticket.id, now)
        first_bytes.ended(ticket.id)
        self.progress.ended(ticket, now, done=False)

    def began(self, ticket_id: int, endpoint: EndpointKey, seconds: float) -> None:
        """Learn the prefill speed from the first byte of a streamed answer.

        Args:
            ticket_id: Ticket of the request; it may be settled already.
            endpoint: The replica that answered; a retried request is ignored.
            seconds: Time from dispatch to the first byte.
        """
        ticket = self._pending.pop(ticket_id, None)
        if ticket is None or ticket.drain_s is None or ticket.endpoint != endpoint:
            return
        replica = self._replicas.get(endpoint)
        model = None if replica is None else replica.latency_models.get(ticket.pool)
        fleet = self.models.get(ticket.pool)
        if replica is not None and model is not None and fleet is not None:
            tokens = fleet.in_force(ticket.id, ticket.work)
            judged = tokens if fleet.judges else None
            replica.first_bytes.began(ticket, ticket.at + seconds, model, judged)
            fleet.note_first_byte(ticket.at)
            if tokens is not None and not ticket.coming:
                model.answered(tokens, ticket.drain_s, seconds)

    def read(self, replica: Replica, readings: Sequence[Reading]) -> None:
        """Learn from the latest readings of a replica, where the proxy reports no first bytes."""
        load = replica.load
        computed = self.progress.observe(replica.key.id, readings, load.in_flight, load.others)
        if replica.key.id in self.progress.told:
            replica.hold(self.progress.at, self.progress.waited_s)
        if computed is None:
            return
        tickets, mean_s, busy_s, share = computed
        pools = {each.pool for each in tickets}
        pool = pools.pop() if len(pools) == 1 else next(iter(replica.latency_models), "")
        fleet, model = self.models.get(pool), replica.latency_models.get(pool)
        if fleet is None or model is None or pools or fleet.uses_first_bytes:
            return
        tokens = [fleet.in_force(each.id, each.work) for each in tickets]
        known = [each for each in tokens if each is not None]
        if len(known) == len(tokens):
            number, work = len(known), sum(known)
            if mean_s is not None:
                drain = sum([each.drain_s or 0.0 for each in tickets])
                model.counted(work / number, drain / number, mean_s)
            elif busy_s:
                model.drained(work / share, busy_s, number)
        if fleet.knows_progress:
            for each in tickets:
                replica.first_bytes.answered(each.id, each.at, done=True)

    def settled(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        """Learn from a request that has just been settled."""
        if self.policies:
            for policy in self.policies.get(ticket.pool, ()):
                policy.settled(ticket, outcome, now)
        done = outcome is DONE
        if ticket.prompted:
            if self.progress.told:
                self.progress.ended(ticket, now, done=done)
            first_bytes = self._replicas[ticket.endpoint].first_bytes
            if first_bytes.work:
                if done:
                    known = self.models[ticket.pool].knows_progress
                    first_bytes.answered(ticket.id, now, done=known)
                else:
                    first_bytes.gone(ticket.id, now)
            if first_bytes.done:
                first_bytes.ended(ticket.id)
        if done:
            self.finished(ticket, now)

    def finished(self, ticket: Ticket, now: float) -> None:
        """Learn from a request that ended normally now, at this worker or at a peer worker."""
        if ticket.drain_s is None or ticket.coming:
            return
        model = self._replicas[ticket.endpoint].latency_models.get(ticket.pool)
        if model is not None:
            tokens = None
            if ticket.prompted:
                tokens = self.models[ticket.pool].in_force(ticket.id, ticket.work)
                if tokens is None:
                    return
            model.learn(tokens, ticket.drain_s, ticket.ahead, now - ticket.at, now)

    def answered(
        self,
        pool: str,
        endpoint: EndpointKey,
        first_byte_s: float | None,
        bytes_per_s: float | None,
        now: float,
    ) -> None:
        """Learn how fast a replica answered, as measured by the proxy; see ``Served``."""
        replica = self._replicas.get(endpoint)
        served = None if replica is None else replica.served.get(pool)
        if served is not None:
            served.put(first_byte_s, bytes_per_s, now)

    def describe(self, pool: str, now: float) -> dict[str, object]:
        """Return the latency model and learning policies of a pool, ready for JSON."""
        return {
            "pace": self.models[pool].describe(),
            "learning": [each.describe(now) for each in self.policies.get(pool, ())],
        }
