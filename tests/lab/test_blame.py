"""Who is to blame, by a real Envoy's log: callers eject no replica, failing to everybody does."""

from __future__ import annotations

import asyncio
import json

from support.replicas import Replica
from support.traffic import GENERATE, eventually, fresh_prompt, metric

MISTAKE, DEADLY = "whatever it says", "the bytes of death"
ATTEMPTS = "tidegate_picker_attempts_total"
EJECTIONS = "tidegate_picker_ejections_total"
SLOW_CHECKS = {"interval": "60s", "timeout": "20s", "unhealthy_after": 10}
REPLICAS = 3
TIMES = 12
MORE = {"health": SLOW_CHECKS, "routing": {"refuse_deadly": False}}
"""Each copy of a request that breaks connections must reach replicas, so none may be refused."""


def replicas() -> list[Replica]:
    """Return three replicas that fail on some requests, as all of them do."""
    return [
        Replica(f"r{number}", fails_on=MISTAKE.encode(), breaks_on=DEADLY.encode())
        for number in range(REPLICAS)
    ]


async def send(http, stack, session, text=None):
    """Send a request of a session; return its status and answer."""
    sent = {"text_input": text or fresh_prompt(64), "max_tokens": 2}
    headers = {"tidegate-session": session}
    async with http.post(stack.http_url + GENERATE, json=sent, headers=headers) as answer:
        return answer.status, await answer.read()


async def ask(http, stack, session, text=None):
    """Send a request of a session; return its status."""
    status, _ = await send(http, stack, session, text)
    return status


async def served_by(http, stack, session):
    """Send an honest request of a session; return the replica that answered it well."""
    status, answer = await send(http, stack, session)
    assert status == 200
    return json.loads(answer)["text_output"]


async def beside_others(http, stack, judge, name, text):
    """Send requests of a caller, or of many, beside those of honest ones, who must be served.

    All come from one address, and such a client may eject a replica by luck, seldom, where only its
    failures reach it for a while. So before the next of them the picker has read a good answer of
    each replica.
    """
    for turn in range(TIMES):
        _, *served = await asyncio.gather(
            ask(http, stack, name.format(turn), text),
            *(served_by(http, stack, f"honest-{turn % 7}-{n}") for n in range(3)),
        )
        while len(set(served)) < REPLICAS:
            served.append(await served_by(http, stack, f"honest-{turn % 7}-{len(served)}"))
        judge.good += len(served)
        await judge.read(none=judge.good)


class Judge:
    """What the picker has read in Envoy's log since a moment."""

    def __init__(self, http, stack):
        self._http, self._stack = http, stack
        self._before = {}
        self.good = 0
        """Good answers that there were."""

    async def __aenter__(self):
        self._before = await self._now()
        return self

    async def __aexit__(self, *_):
        pass

    async def _now(self):
        found = {
            blame: await metric(self._http, self._stack.picker_metrics, ATTEMPTS, blame=blame)
            for blame in ("request", "replica", "none", "us")
        }
        found["ejections"] = await metric(self._http, self._stack.picker_metrics, EJECTIONS)
        return found

    async def read(self, **least):
        """Wait until it has read so many attempts by who was to blame; return the ejections."""

        async def known() -> bool:
            now = await self._now()
            return all(now[each] - self._before[each] >= count for each, count in least.items())

        assert await eventually(known), least
        return (await self._now())["ejections"] - self._before["ejections"]


async def test_callers_eject_no_replica(http, empty_stack):
    """Mistakes that the picker cannot see and requests that break connections, by one and many."""
    async with empty_stack.over(*replicas(), more=MORE) as stack, Judge(http, stack) as judge:
        for text in (MISTAKE, DEADLY):
            for name in ("one", "many-{}"):
                await beside_others(http, stack, judge, name, text)
        # Each that broke connections, twice; an error says nothing more by itself.
        ejections = await judge.read(request=2 * 2 * TIMES, replica=TIMES, none=judge.good)
        assert ejections == 0


async def test_our_own_timeouts_eject_no_replica(http, empty_stack):
    """Honest long requests under a short timeout of the route."""
    made = replicas()
    more = {"health": SLOW_CHECKS, "timeouts": {"request": "0.3s"}}
    async with empty_stack.over(*made, more=more) as stack, Judge(http, stack) as judge:
        never = asyncio.Event()
        for replica in made:
            replica.gate = never
        for turn in range(6):
            statuses = await asyncio.gather(*(ask(http, stack, f"{turn}-{n}") for n in range(4)))
            assert statuses == [504] * 4
        assert await judge.read(us=24) == 0
        never.set()


async def test_a_replica_that_fails_everybody_is_ejected(http, empty_stack):
    """After about as many failures as there must be in a row; the picker hears of each at once."""
    made = replicas()
    async with empty_stack.over(*made, more=MORE) as stack, Judge(http, stack) as judge:
        for turn in range(30):
            assert await ask(http, stack, f"before-{turn}") == 200
        made[0].status = 500
        failed = 0
        for turn in range(200):
            failed += await ask(http, stack, f"after-{turn}") == 500
            if ejections := await judge.read(replica=failed):
                break
        assert ejections == 1
        assert failed <= 20
