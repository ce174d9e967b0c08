"""What an operation does next: events in, actions out. Pure.

Rules:

1. An operation goes through ``waiting``, ``checking``, ``changing``, ``comparing`` and ``warming``
   (a load only) to ``done``. What fails, and an abort at any of them, leads to ``undoing``, and
   from there to ``undone``, or to ``failed`` if a replica cannot be brought back.
2. All replicas are checked before anything is changed. One that does not answer, lacks memory, or
   does not take calls ends the operation, with nothing changed. What is not known is no reason.
3. At most ``parallel`` replicas have a call at one time, in undoing too.
4. All or nothing: undoing makes the opposite call at each replica whose call succeeded, failed, or
   may have been sent. A replica whose call runs is brought back when its call has ended.
5. What the model had served there before is never taken away: a replica that had it is not
   unloaded again, neither one that was left as it was nor one that was loaded anew.
6. The opposite call is made at most ``MAX_TRIES`` times. An operation that made a call and is
   undone looks at its replicas last (``Look``), and says what they serve now: a version that a load
   has replaced does not come back.
7. An operation whose process has ended is taken up by the next one, from the phase that was stored:

   * ``waiting`` begins when its turn comes;
   * ``checking`` and ``changing`` check all replicas again, since any time may have passed, and
     then change those that lack the change. Loads and unloads may be repeated, so a call whose
     outcome is not known is made again, unless the check finds its effect;
   * ``comparing`` and ``warming`` compare again, and send all warm-up requests again;
   * ``undoing`` undoes again, with as many tries as at first.

   It is undone instead if something that it needs is not known any more, and at the restart after
   ``MAX_RESUMES`` others. A caller must store an operation after each event, before it takes the
   actions.
8. A replica that a call was or may have been sent to is undone by rule 4, also where a later check
   has found that the call is to be made again.
9. A model is taken out of use on a replica before it is unloaded there (``leaving``). A call that
   was not sent because clients have not been told of that leaves nothing to undo there.
10. An event that does not fit, such as the outcome of a call that was given up, changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from xds_server.applications.loading.operation import MAX_REASON_CHARS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from xds_server.applications.loading.operation import ModelTarget, Operation, Phase

MAX_TRIES: Final = 5
MAX_RESUMES: Final = 3
"""Most restarts over which an operation goes on; it may be what ends the process."""


class ReplicaFinding(NamedTuple):
    """What the check of a replica found."""

    plan: Literal["change", "reload", "keep"]
    """``reload``: the model is READY there, but not the version that is wanted."""
    text: str = ""
    """In words; empty = nothing to tell."""
    refusal: str = ""
    """Why the operation must not begin; empty = it may."""


@dataclass(frozen=True, slots=True)
class Check:
    """Check all replicas; followed by ``checked``."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """Load or unload at a replica; followed by ``called``."""

    replica: str
    kind: Literal["load", "unload"]
    delay: int
    """Number of earlier tries, for the pause before it."""


@dataclass(frozen=True, slots=True)
class Compare:
    """Compare what the replicas have; followed by ``compared``."""


@dataclass(frozen=True, slots=True)
class Warm:
    """Send the warm-up requests to a replica; followed by ``warmed``."""

    replica: str


@dataclass(frozen=True, slots=True)
class Look:
    """See what the replicas serve; followed by ``looked``."""


Action = Check | ModelCall | Compare | Warm | Look


class LoadMachine:
    """Drives one operation; see the module's rules.

    Args:
        operation: The operation, which is changed in place.
        unix_ms: Wall clock, Unix milliseconds.
    """

    def __init__(self, operation: Operation, unix_ms: Callable[[], int]) -> None:
        self.operation = operation
        self._unix_ms = unix_ms
        self._warming: list[str] = []
        self._warm_running: set[str] = set()

    def begin(self) -> list[Action]:
        """Begin an operation that waits."""
        if self.operation.phase != "waiting":
            return []
        self._enter("checking")
        return [Check()]

    def restarted(self, *, whole: bool = True) -> list[Action]:
        """Take up an operation of an earlier process (rule 7).

        Args:
            whole: All that it needs is known.
        """
        operation = self.operation
        if operation.ended:
            return []
        for each in operation.targets:
            each.tries = 0
            if each.place in {"calling", "changed", "undoing"}:
                each.place, each.called = "changed", True
        operation.resumed += operation.phase != "waiting"
        why = self._why_not_resumed(whole=whole)
        if why:
            return self._undo(why)
        if operation.phase == "waiting":
            return self.begin()
        self._tell("the control server was restarted")
        if operation.phase in {"comparing", "warming"}:
            self._enter("comparing", " again")
            return [Compare()]
        self._enter("checking", " again")
        return [Check()]

    def abort(self, who: str) -> list[Action]:
        """Give up, and undo what was done."""
        if self.operation.ended or self.operation.phase == "undoing":
            return []
        return self._undo(f"aborted by {who}" if who else "aborted")

    def checked(self, findings: Mapping[str, ReplicaFinding], refusal: str = "") -> list[Action]:
        """Take the outcome of a check.

        Args:
            findings: By replica; one without is not changed.
            refusal: Why the operation must not begin as a whole; empty = it may.
        """
        operation = self.operation
        if operation.phase != "checking":
            return []
        refusals = [refusal] if refusal else []
        for each in operation.targets:
            found = findings.get(each.id, ReplicaFinding("keep", "", "it was not checked"))
            if found.refusal:
                refusals.append(f"{each.id}: {found.refusal}")
            elif found.text:
                self._tell(f"{each.id}: {found.text}")
            self._plan(each, found)
        if refusals:
            for each in operation.targets:
                each.place = "changed" if each.called else "unknown"
            return self._undo("; ".join(refusals))
        if operation.dry_run:
            self._end("done")
            return []
        self._enter("changing")
        return self._next_calls()

    def called(
        self, replica: str, fault: str = "", notes: Iterable[str] = (), *, sent: bool = True
    ) -> list[Action]:
        """Take the outcome of a call.

        Args:
            replica: The replica.
            fault: Why it failed; empty if it succeeded.
            notes: What there is to tell of it, in words.
            sent: Whether it may have been sent.
        """
        target = self._target(replica)
        if target is None:
            return []
        for each in notes:
            self._tell(f"{replica}: {each}")
        if not sent and target.place == "calling":
            target.place, target.called = "planned", self.operation.resumed > 0
            return self._undo(f"{replica}: not unloaded: {fault}")
        if target.place == "calling":
            return self._changed(target, fault)
        if target.place == "undoing":
            return self._brought_back(target, fault)
        return []

    def compared(self, differences: Iterable[str], warm: bool = False) -> list[Action]:
        """Take the differences between the replicas; none = they have the same.

        Args:
            differences: In words.
            warm: There are warm-up requests to be sent.
        """
        operation = self.operation
        if operation.phase != "comparing":
            return []
        found = list(differences)
        if found:
            return self._undo("the replicas differ: " + "; ".join(found))
        self._tell("all replicas have the same configuration, versions, platform and shapes")
        self._warming = [each.id for each in operation.targets if each.place == "changed"]
        if not warm or not self._warming:
            return self._finish()
        self._enter("warming")
        return self._next_warm()

    def looked(self, now: str) -> list[Action]:
        """Take what the replicas serve after all was undone, in words."""
        operation = self.operation
        settled = {each.place for each in operation.targets} <= {"kept", "undone", "stuck"}
        if operation.phase == "undoing" and settled:
            operation.now = now[:MAX_REASON_CHARS]
            self._tell(f"now: {now}")
            self._end_undone()
        return []

    def warmed(self, replica: str, fault: str = "") -> list[Action]:
        """Take the outcome of warm-up requests; ``fault`` is empty if they succeeded."""
        if self.operation.phase != "warming" or replica not in self._warm_running:
            return []
        self._warm_running.discard(replica)
        if fault:
            return self._undo(f"{replica}: a warm-up request failed: {fault}")
        self._tell(f"{replica}: warmed up")
        if not self._warming and not self._warm_running:
            return self._finish()
        return self._next_warm()

    # --- calls ----------------------------------------------------------------------------------

    def _plan(self, target: ModelTarget, found: ReplicaFinding) -> None:
        if target.called:
            # The change was or may have been made before a restart, and may be lost since.
            target.place = "changed" if found.plan == "keep" else "planned"
        elif found.plan == "keep":
            target.place = "kept"
        else:
            # What had the model at the check before a restart is not unloaded either (rule 5).
            had = target.place == "kept" and self.operation.kind == "load"
            target.reloaded = had or found.plan == "reload"
            target.place = "planned"

    def _changed(self, target: ModelTarget, fault: str) -> list[Action]:
        operation = self.operation
        # A call that failed may have had an effect all the same: it is undone like the others.
        target.place = "changed"
        verb = "loaded" if operation.kind == "load" else "unloaded"
        if fault:
            self._tell(f"{target.id}: not {verb}: {fault}")
            if operation.phase == "changing":
                return self._undo(f"{target.id}: not {verb}: {fault}")
            return self._next_back()
        self._tell(f"{target.id}: {verb}")
        return self._next_back() if operation.phase == "undoing" else self._next_calls()

    def _brought_back(self, target: ModelTarget, fault: str) -> list[Action]:
        verb = "unloaded again" if self.operation.kind == "load" else "loaded again"
        if not fault:
            target.place = "undone"
            self._tell(f"{target.id}: {verb}")
        elif target.tries >= MAX_TRIES:
            target.place = "stuck"
            self._tell(f"{target.id}: not {verb}: {fault}; given up after {MAX_TRIES} times")
        else:
            target.place = "changed"
            self._tell(f"{target.id}: not {verb}: {fault}; trying again")
        return self._next_back()

    def _next_calls(self) -> list[Action]:
        """Return the calls that may begin now, and what follows if all have ended."""
        operation = self.operation
        actions: list[Action] = []
        for each in self._startable("planned", "calling"):
            each.place, each.called = "calling", True
            actions.append(ModelCall(each.id, operation.kind, 0))
        if actions or any(each.place == "calling" for each in operation.targets):
            return actions
        if operation.kind == "unload":
            return self._finish()
        self._enter("comparing")
        return [Compare()]

    def _next_back(self) -> list[Action]:
        """Return the opposite calls that may begin now; end if all have ended."""
        operation = self.operation
        for each in operation.targets:
            if each.place == "changed" and each.reloaded:
                each.place = "kept"
                self._tell(f"{each.id}: stays loaded, as another version was there before")
        actions: list[Action] = []
        for each in self._startable("changed", "undoing"):
            each.place = "undoing"
            back: Literal["load", "unload"] = "unload" if operation.kind == "load" else "load"
            actions.append(ModelCall(each.id, back, each.tries))
            each.tries += 1
        places = {each.place for each in operation.targets}
        if actions or not places.isdisjoint({"calling", "undoing", "changed"}):
            return actions
        if any(each.called for each in operation.targets):
            return [Look()]
        self._end_undone()
        return []

    def _end_undone(self) -> None:
        stuck = any(each.place == "stuck" for each in self.operation.targets)
        self._end("failed" if stuck else "undone")

    def _startable(self, ready: str, running: str) -> list[ModelTarget]:
        targets = self.operation.targets
        busy = sum(each.place in {"calling", "undoing", running} for each in targets)
        free = max(0, self.operation.parallel - busy)
        return [each for each in targets if each.place == ready][:free]

    def _next_warm(self) -> list[Action]:
        actions: list[Action] = []
        while self._warming and len(self._warm_running) < self.operation.parallel:
            replica = self._warming.pop(0)
            self._warm_running.add(replica)
            actions.append(Warm(replica))
        return actions

    def _why_not_resumed(self, *, whole: bool) -> str:
        operation = self.operation
        if operation.phase == "undoing":
            return "the control server was restarted"
        if not whole:
            return "the control server was restarted, and not all that it needs was stored"
        if operation.resumed > MAX_RESUMES:
            return f"the control server was restarted {operation.resumed} times"
        return ""

    # --- phases ---------------------------------------------------------------------------------

    def _undo(self, why: str) -> list[Action]:
        operation = self.operation
        operation.why = operation.why or why[:MAX_REASON_CHARS]
        self._warming, self._warm_running = [], set()
        for each in operation.targets:
            if each.place in {"unknown", "planned"}:
                each.place = "changed" if each.called else "undone"
        self._enter("undoing", f": {why}")
        return self._next_back()

    def _finish(self) -> list[Action]:
        self._end("done")
        return []

    def _end(self, phase: Phase) -> None:
        self._enter(phase)
        self.operation.ended_unix_ms = self._unix_ms()

    def _enter(self, phase: Phase, more: str = "") -> None:
        self.operation.phase = phase
        self._tell(phase + more)

    def _tell(self, text: str) -> None:
        self.operation.tell(self._unix_ms(), text)

    def _target(self, replica: str) -> ModelTarget | None:
        return next((each for each in self.operation.targets if each.id == replica), None)
