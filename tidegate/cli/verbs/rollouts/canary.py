"""``canary``: rollouts that move a pool's weights by themselves, and what they show."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import (
    AuthorOption,
    ReadFlags,
    ReasonOption,
    WatchOption,
    os_user,
)

if TYPE_CHECKING:
    from tidegate_api.admin.v1.admin_pb2 import CanaryRollout, CanaryRollouts
    from tidegate_api.admin.v1.admin_pb2_grpc import AdminStub


class CanaryAction(StrEnum):
    """What ``canary`` does."""

    START = "start"
    STATUS = "status"
    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    ABORT = "abort"
    FREEZE = "freeze"
    UNFREEZE = "unfreeze"
    REPORT = "report"


_ALL = frozenset({CanaryAction.FREEZE, CanaryAction.UNFREEZE})
"""Actions that are for all pools."""
_READS = frozenset({CanaryAction.STATUS, CanaryAction.REPORT})


def canary(
    action: Annotated[
        CanaryAction,
        typer.Argument(
            help="start, status, pause, resume, promote (to 100 %), abort (back), report; freeze"
            " and unfreeze the steps of all pools."
        ),
    ],
    pool: Annotated[
        str, typer.Argument(metavar="[POOL]", help="Name of the pool; of status: default all.")
    ] = "",
    to: Annotated[
        str, typer.Option("--to", metavar="VARIANT", help="Variant that is to get everything.")
    ] = "",
    plan: Annotated[
        list[str] | None,
        typer.Option(
            "--plan",
            metavar="NAME=VALUE",
            help="Another value of the pool's `canary` for this rollout, repeatable.",
        ),
    ] = None,
    seen: Annotated[
        int,
        typer.Option(
            "--seen",
            min=-1,
            metavar="N",
            help="Refuse if the pool is not at the N transitions (freeze and unfreeze: the N"
            " freezes) that `status` showed; -1 = at those when the command begins.",
        ),
    ] = -1,
    force: Annotated[
        bool, typer.Option("--force", help="Act whatever was changed meanwhile.")
    ] = False,
    watch: WatchOption = False,
    reason: ReasonOption = "",
    author: AuthorOption = "",
    *,
    flags: ReadFlags,
) -> None:
    """Roll a variant out step by step, as its sessions prove no worse, or back.

    `status` says what the next step waits for and about how long, `report` what was compared and
    what it cost.
    """
    _checked(action, pool, to, plan)
    if action in _READS:
        if watch:
            from tidegate.cli.watching import repeat

            repeat(lambda: _read(action, pool, flags))
        _read(action, pool, flags)
        return
    from tidegate.cli.client import CHANGE_MARGIN_S, READ_TIMEOUT_S, admin
    from tidegate.cli.options import DEFAULT_TIMEOUT_S
    from tidegate_api.admin.v1 import admin_pb2 as api

    bound = DEFAULT_TIMEOUT_S + CHANGE_MARGIN_S
    options = api.ChangeOptions(author=author or os_user(), reason=reason, force=force)

    settings = _settings(plan or [])

    def call(stub: AdminStub) -> CanaryRollouts:
        number: int | None = None if force else seen
        if number is not None and number < 0:
            now = stub.GetCanaries(api.GetCanariesRequest(pool=pool), timeout=READ_TIMEOUT_S)
            found = now.rollouts[0].transitions if now.rollouts else 0
            number = now.freezes if action in _ALL else found
        if action is CanaryAction.START:
            asked = api.StartCanaryRequest(
                pool=pool, variant=to, plan=settings, options=options, seen=number
            )
            return stub.StartCanary(asked, timeout=bound)
        request = api.ActOnCanaryRequest(pool=pool, action=action, seen=number, options=options)
        return stub.ActOnCanary(request, timeout=bound)

    with admin(flags.server, flags.tls, change=True) as stub:
        answer = call(stub)
    _show(answer, flags, empty="no rollout runs")


def _checked(action: CanaryAction, pool: str, to: str, plan: list[str] | None) -> None:
    """Check which words belong together.

    Raises:
        typer.BadParameter: One is missing or too many.
    """
    if bool(to) != (action is CanaryAction.START):
        raise typer.BadParameter("--to VARIANT is needed by start, and of no other action")
    if plan and action is not CanaryAction.START:
        raise typer.BadParameter(f"--plan is of start, not of {action}")
    if pool and action in _ALL:
        raise typer.BadParameter(f"{action} is for all pools; name none")
    if not pool and action not in _ALL and action is not CanaryAction.STATUS:
        raise typer.BadParameter(f"write: tidegate canary {action} POOL")


def _settings(words: list[str]) -> dict[str, str]:
    """Parse arguments of the form ``NAME=VALUE``.

    Raises:
        typer.BadParameter: One is not of this form.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals or not value:
            raise typer.BadParameter(f"{word!r:.80}: write NAME=VALUE, such as steps=1,50,100")
        found[name] = value
    return found


def _read(action: CanaryAction, pool: str, flags: ReadFlags) -> None:
    from tidegate.cli.client import ask
    from tidegate.terminal.errors import CliError
    from tidegate.terminal.output import emit

    answer = ask(flags, "GetCanaries", pool=pool)
    if pool and not answer.rollouts:
        raise CliError(
            f"pool '{pool}' has had no rollout; tidegate canary start {pool} --to VARIANT"
        )
    if action is CanaryAction.STATUS:
        _show(answer, flags, empty="no pool has had a rollout")
        return
    told = json.loads(answer.rollouts[0].report_json)
    emit(told, _report(told), flags.output)


def _show(answer: CanaryRollouts, flags: ReadFlags, empty: str) -> None:
    from rich.text import Text

    from tidegate.terminal.output import emit

    lines = []
    if answer.frozen:
        lines.append(f"all rollouts are frozen by {answer.frozen}  (freezes: {answer.freezes})")
    for each in answer.rollouts:
        lines.append(f"{each.line}  (transitions: {each.transitions})")
        lines += [f"  waits for {one}" for one in each.waits_for]
    data = {
        "frozen": answer.frozen or None,
        "freezes": answer.freezes,
        "rollouts": [_data(each) for each in answer.rollouts],
    }
    emit(data, [Text("\n".join(lines or [empty]))], flags.output)


def _data(each: CanaryRollout) -> dict[str, Any]:
    return {
        "pool": each.pool,
        "phase": each.phase,
        "line": each.line,
        "transitions": each.transitions,
        "waits_for": list(each.waits_for),
        "report": json.loads(each.report_json),
    }


def _report(told: dict[str, Any]) -> list[Any]:
    """Return what a rollout compared and cost, for people."""
    from datetime import UTC, datetime

    from rich.text import Text

    from tidegate.terminal.output import table

    sessions, failed, ratio = told["sessions"], told["failed_sessions"], told["failure_ratio"]
    head = f"pool {told['pool']}: {told['canary']} in place of {told['stable']}"
    lines = [
        f"{head}: {told['phase']} at {told['percent']:g} %",
        *([told["reason"]] if told["reason"] else []),
        f"sessions: {sessions['canary']} of the canary, {sessions['stable']} of stable",
        f"failed: {failed['canary']} of the canary (what it cost), {failed['stable']} of stable",
        f"the canary fails {ratio['low']:.3g} to {ratio['high']:.3g} times as often (95 %)",
    ]
    checks = [
        (
            each["check"],
            f"{each['worse']:.3g}",
            f"{each['not_worse']:.3g}",
            "yes" if each["condition"] else "no",
        )
        for each in told["checks"]
    ]
    steps = [
        (
            datetime.fromtimestamp(each["at_s"], UTC).strftime("%Y-%m-%d %H:%M:%S"),
            each["phase"],
            f"{each['percent']:g} %",
            each["reason"],
        )
        for each in told["log"]
    ]
    columns = ("check", "#evidence it is worse", "#that it is not", "needed for 100 %")
    return [
        Text("\n".join(lines)),
        table(columns, checks),
        table(("at (UTC)", "phase", "#share", "reason"), steps),
    ]
