"""The calls of the admin service about rollouts that decide."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tidegate_api.admin.v1 import admin_pb2
from xds_server.admin.answers.explained import explained, options_of
from xds_server.applications.canary.controller import line_of
from xds_server.fleet.change import BadChange

if TYPE_CHECKING:
    from xds_server.applications.keepers.canary_keeper import CanaryKeeper


class CanaryCalls:
    """The part of ``tidegate.admin.v1.Admin`` that is about rollouts.

    Args:
        canaries: Runs rollouts; ``None`` = there are none.
    """

    def __init__(self, canaries: CanaryKeeper | None) -> None:
        self._canaries = canaries

    @explained
    async def rollouts(
        self, request: admin_pb2.GetCanariesRequest, _context: Any
    ) -> admin_pb2.CanaryRollouts:
        """Return the last rollout of each pool."""
        return _told(self._keeper(), request.pool)

    @explained
    async def start(
        self, request: admin_pb2.StartCanaryRequest, _context: Any
    ) -> admin_pb2.CanaryRollouts:
        """Start a rollout."""
        options, keeper = options_of(request.options), self._keeper()
        if options.dry_run:
            raise BadChange("a rollout has no dry run")
        words, seen = dict(request.plan), _seen("start", request)
        await keeper.begin(
            request.pool, request.variant, options.author, words, options.reason, seen
        )
        return _told(keeper, request.pool)

    @explained
    async def act(
        self, request: admin_pb2.ActOnCanaryRequest, _context: Any
    ) -> admin_pb2.CanaryRollouts:
        """Do with a rollout what an operator asks for."""
        options, keeper, action = options_of(request.options), self._keeper(), request.action
        if options.dry_run:
            raise BadChange("a rollout has no dry run")
        every = action in {"freeze", "unfreeze"}
        if every and request.pool:
            raise BadChange(f"{action} is for all pools; name none")
        seen = _seen(action, request)
        if every:
            await keeper.freeze(options.author, options.reason, seen, frozen=action == "freeze")
        else:
            await keeper.ask(request.pool, action, options.author, seen, options.reason)
        return _told(keeper, request.pool)

    def _keeper(self) -> CanaryKeeper:
        if self._canaries is None:
            raise BadChange("this control server runs no rollouts")
        return self._canaries


def _seen(
    verb: str, request: admin_pb2.StartCanaryRequest | admin_pb2.ActOnCanaryRequest
) -> int | None:
    """Return the number of transitions, or freezes, that an operator has seen; ``None`` = any.

    Raises:
        BadChange: It is missing, and the call is not forced.
    """
    if request.options.force:
        return None
    if not request.HasField("seen"):
        raise BadChange(
            f"{verb}: `seen` is missing: send the number of transitions (of freeze and unfreeze:"
            " `freezes`) that GetCanaries shows, 0 = there was none; or `options.force`"
        )
    return request.seen


def _told(keeper: CanaryKeeper, pool: str) -> admin_pb2.CanaryRollouts:
    answer = admin_pb2.CanaryRollouts(frozen=keeper.frozen, freezes=keeper.freezes)
    for name, each in keeper.rollouts(pool).items():
        lacking = keeper.lacking(name)
        answer.rollouts.add(
            pool=name,
            line=line_of(each, lacking),
            phase=each.state.phase.value,
            transitions=each.transitions,
            waits_for=lacking,
            report_json=json.dumps(keeper.report(name)),
        )
    return answer
