"""Verdicts on provisional inserts: which prompts of requests stay in the prefix index. Pure.

Rules:

1. A request's prompt is inserted provisionally with its ticket (``inserts``). It is confirmed
   at the replica on which the answer began with a status below 400, as the proxy's log says. A
   request that was refused, failed, or was left before that leaves nothing.
2. A retry moves the insert to the replica that serves it; the one before has nothing of it.
3. A request that ended without a verdict waits ``GRACE_S`` for its log entry. If entries of other
   requests arrived meanwhile, the log works and this entry is lost: the insert is withdrawn. If
   none arrived, there is no log, and the end of the request decides: a normal one confirms.
4. From then on, until an entry arrives, ends decide at once.
5. A running request keeps its insert. At most ``MAX_BLOCKS`` blocks wait for a verdict; beyond, the
   oldest inserts are withdrawn.
6. Inserts of peer workers get their verdicts from these workers. When a worker is lost, its
   inserts without a verdict are withdrawn.
7. Of a batch each prompt is an insert of its own, and all share the verdict. They have tickets that
   no request has.
8. Each change by this worker is an event; changes by peer workers are not.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.cache.index_events import Inserted
from ext_proc.routing.cache.prefix_uses import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from ext_proc.routing.cache.prefix_index import PrefixIndex
    from ext_proc.routing.cache.prefix_uses import RepeatedInsert
    from ext_proc.routing.values.pool import EndpointKey

    _Ended = tuple[float, int, bool, int]
    """When its wait ends, its ticket, whether it ended normally, entries heard until then."""

MAX_BLOCKS: Final = 2**20
"""About 8 bytes each, and what the index takes for new ones."""
GRACE_S: Final = 2.0
"""Envoy sends an entry at the latest 0.05 s after its request, a busy machine later."""
MAX_ENDED: Final = 2**16
"""Maximum requests that wait for their entry; beyond, the longest wait ends early."""
MAX_PROMPTS: Final = 64
"""Maximum prompts of a batch that are inserted."""
_PART: Final = 2**40
"""Between the numbers of the prompts of a batch; no picker has as many tickets."""
_WORKER: Final = 2**48
"""Numbers of tickets that one peer worker can have."""


class Confirmed(NamedTuple):
    """The provisional insert of a ticket is confirmed."""

    ticket: int


class Withdrawn(NamedTuple):
    """The provisional insert of a ticket is withdrawn."""

    ticket: int


Verdict = Confirmed | Withdrawn
INDEX_EVENTS: Final = (Inserted, Confirmed, Withdrawn)
"""Events of the index that peer workers follow."""


class Trials:
    """Provisional inserts by ticket.

    Args:
        index: The prefix index.
        members: The registered replicas.
        on_event: Called with each change that this worker's requests cause.
    """

    def __init__(
        self,
        index: PrefixIndex,
        members: Container[EndpointKey],
        on_event: Callable[[Inserted | Verdict], None] | None = None,
    ) -> None:
        self._provisional = index.provisional
        self._insert = index.insert
        self._members = members
        self.on_event = on_event
        self.open: dict[int, Trial | RepeatedInsert] = {}
        """Inserts by ticket; those of peer workers have negative numbers. Without any, ``ended``
        need not be called."""
        self._ended: deque[_Ended] = deque()
        """Requests that ended without a verdict, by time."""
        self._further: dict[int, int] = {}
        """Number of further prompts of a batch, by ticket."""
        self._left = MAX_BLOCKS
        self._heard = 0
        """Number of verdicts of the log."""
        self._silent = False
        """The log is known not to work (rule 4)."""
        self._now = 0.0
        """The latest time known: verdicts of the log carry none."""

    def __len__(self) -> int:
        return len(self.open)

    # --- This worker's requests -----------------------------------------------------------------

    def propose(
        self,
        ticket: int,
        endpoint: EndpointKey,
        blocks: tuple[int, ...],
        tenant: int,
        held: int,
        now: float,
        *,
        recomputed: bool = False,
    ) -> None:
        """Insert the prompt of a request.

        Args:
            ticket: The request's ticket, above 0.
            endpoint: The replica that it was sent to.
            blocks: Its prompt, at least one block.
            tenant: Who sent it.
            held: How many blocks the replica probably holds.
            now: Monotonic seconds, not less than in any earlier call.
            recomputed: The engine computes all of it, also what it holds.
        """
        self._now = now
        self.open[ticket] = trial = self._provisional.propose(
            endpoint, blocks, now, tenant, held, recomputed=recomputed
        )
        self._left -= len(trial.blocks)
        if self._left < 0:
            self._shed()
        if self.on_event is not None:
            self.on_event(Inserted(endpoint, blocks, now, tenant, ticket, recomputed))

    def propose_all(
        self,
        ticket: int,
        endpoint: EndpointKey,
        prompts: Sequence[tuple[int, ...]],
        tenant: int,
        now: float,
        *,
        recomputed: bool = False,
    ) -> None:
        """Insert the prompts of a batch (rule 7), at most ``MAX_PROMPTS``."""
        prompts = prompts[:MAX_PROMPTS]
        for number, blocks in enumerate(prompts):
            part = ticket + number * _PART
            self.propose(part, endpoint, blocks, tenant, 0, now, recomputed=recomputed)
        self._further[ticket] = len(prompts) - 1

    def move(self, ticket: int, endpoint: EndpointKey, now: float) -> None:
        """Note that another replica serves a request now, after a retry (rule 2)."""
        self._now = now
        for number in range(1, self._further.get(ticket, 0) + 1):
            self.move(ticket + number * _PART, endpoint, now)
        trial = self.open.get(ticket)
        if trial is None or trial.holder.key == endpoint or endpoint not in self._members:
            return
        blocks, tenant, recomputed = tuple(trial.blocks), trial.whose, _recomputed(trial)
        self._withdraw(ticket)
        self.propose(ticket, endpoint, blocks, tenant, 0, now, recomputed=recomputed)

    def confirm(self, ticket: int, endpoint: EndpointKey) -> None:
        """Note that the log says that an answer below 400 began on a replica."""
        self._heard += 1
        self._silent = False
        if ticket in self._further:
            for number in range(1, self._further.pop(ticket) + 1):
                self._begun(ticket + number * _PART, endpoint)
        if ticket in self.open:
            self._begun(ticket, endpoint)

    def _begun(self, ticket: int, endpoint: EndpointKey) -> None:
        trial = self.open.get(ticket)
        if trial is None:
            return
        if trial.holder.key != endpoint:
            self.move(ticket, endpoint, self._now)
            if self.open[ticket].holder.key != endpoint:
                self._withdraw(ticket)
                return
        self._confirm(ticket)

    def reject(self, ticket: int) -> None:
        """Note that the log says that a request was not answered so."""
        self._heard += 1
        self._silent = False
        for number in range(1, self._further.pop(ticket, 0) + 1):
            if ticket + number * _PART in self.open:
                self._withdraw(ticket + number * _PART)
        if ticket in self.open:
            self._withdraw(ticket)

    def ended(self, ticket: int, now: float, *, done: bool) -> None:
        """Note that a request ended, normally or not (rule 3), and decide what has waited."""
        self._now = now
        ended = self._ended
        while ended and ended[0][0] <= now:
            self._resolve(ended.popleft())
        for number in range(1, self._further.get(ticket, 0) + 1):
            self.ended(ticket + number * _PART, now, done=done)
        if ticket not in self.open:
            self._further.pop(ticket, None)
        else:
            if self._silent:
                self._further.pop(ticket, None)
                self._decide(ticket, done=done)
                return
            ended.append((now + GRACE_S, ticket, done, self._heard))
            if len(ended) > MAX_ENDED:
                self._resolve(ended.popleft())

    def _resolve(self, ended: _Ended) -> None:
        _, ticket, done, heard = ended
        self._further.pop(ticket, None)
        if ticket not in self.open:
            return
        if heard == self._heard:
            self._silent = True
            self._decide(ticket, done=done)
        else:
            self._withdraw(ticket)

    def _decide(self, ticket: int, *, done: bool) -> None:
        if done:
            self._confirm(ticket)
        else:
            self._withdraw(ticket)

    def _confirm(self, ticket: int) -> None:
        trial = self.open.pop(ticket)
        self._left += len(trial.blocks)
        self._provisional.confirm(trial, self._now)
        if self.on_event is not None and ticket > 0:
            self.on_event(Confirmed(ticket))

    def _withdraw(self, ticket: int) -> None:
        self._provisional.failed(self._take(ticket))
        if self.on_event is not None and ticket > 0:
            self.on_event(Withdrawn(ticket))

    def standing(self) -> Iterator[Inserted]:
        """Yield this worker's inserts without a verdict, for a new reader."""
        for ticket, trial in list(self.open.items()):
            if ticket > 0:
                blocks, tenant = tuple(trial.blocks), trial.whose
                key, again = trial.holder.key, _recomputed(trial)
                yield Inserted(key, blocks, trial.at, tenant, ticket, again)

    # --- Peer workers' requests -----------------------------------------------------------------

    def follow(self, peer_worker: int, event: Inserted | Verdict, now: float) -> None:
        """Apply an event of a peer worker, 0 and up; unknown replicas and tickets are ignored."""
        self._now = now
        if isinstance(event, Inserted):
            endpoint, blocks, _, tenant, ticket, recomputed = event
            if endpoint not in self._members or not blocks:
                return
            if not ticket:
                self._insert(endpoint, blocks, now, tenant)
                return
            number = _number(peer_worker, ticket)
            if number in self.open:
                self._withdraw(number)
            self.open[number] = trial = self._provisional.propose(
                endpoint, blocks, now, tenant, recomputed=recomputed
            )
            self._left -= len(trial.blocks)
            self._shed()
            return
        number = _number(peer_worker, event.ticket)
        if number in self.open:
            self._decide(number, done=isinstance(event, Confirmed))

    def lost(self, peer_worker: int) -> None:
        """Withdraw what a peer worker that is lost has not decided."""
        first, last = _number(peer_worker + 1, 0), _number(peer_worker, 0)
        for number in [each for each in self.open if first < each <= last]:
            self._withdraw(number)

    # --- Inside ---------------------------------------------------------------------------------

    def _shed(self) -> None:
        while self._left < 0:
            self._withdraw(next(iter(self.open)))

    def _take(self, number: int) -> Trial | RepeatedInsert:
        trial = self.open.pop(number)
        self._left += len(trial.blocks)
        return trial


def _recomputed(trial: Trial | RepeatedInsert) -> bool:
    return isinstance(trial, Trial) and trial.recomputed


def _number(peer_worker: int, ticket: int) -> int:
    return -((peer_worker + 1) * _WORKER + ticket % _WORKER)
