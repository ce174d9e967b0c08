"""``model``: loads a model on replicas of a pool, unloads it, and compares what they have."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads annotations at runtime
from typing import Annotated, Any

import typer

from tidegate.cli.options import ForcedFlags  # noqa: TC001 - typer reads annotations at runtime

MAX_PARALLEL = 64
MAX_WARMUP_BYTES = 2**20


class ModelAction(StrEnum):
    """What ``model`` does."""

    LOAD = "load"
    UNLOAD = "unload"
    ABORT = "abort"
    PARITY = "parity"
    LIST = "list"


WORDS = {
    ModelAction.LOAD: ("POOL MODEL", 2),
    ModelAction.UNLOAD: ("POOL MODEL", 2),
    ModelAction.PARITY: ("POOL MODEL", 2),
    ModelAction.ABORT: ("NUMBER", 1),
    ModelAction.LIST: ("[NUMBER]", 1),
}
"""What follows the action, and how many words that is at most."""


def model(
    action: Annotated[
        ModelAction, typer.Argument(help="load, unload, abort, parity (compare) or list.")
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[POOL MODEL | NUMBER]",
            help="Pool and model; of abort and list the number of an operation.",
        ),
    ] = None,
    version: Annotated[
        str,
        typer.Option(
            "--version", metavar="N", help="Version that must be READY after a load; default: any."
        ),
    ] = "",
    endpoints: Annotated[
        str,
        typer.Option(
            "--endpoints",
            metavar="ID,...",
            help="Ids of replicas; default: all of the pool that do not drain.",
        ),
    ] = "",
    parallel: Annotated[
        int,
        typer.Option(
            "--parallel", min=1, max=MAX_PARALLEL, help="Most replicas that change at a time."
        ),
    ] = 2,
    warmup: Annotated[
        list[Path] | None,
        typer.Option(
            "--warmup",
            metavar="FILE",
            help="Inference request (JSON) to send to each replica after a load; repeatable.",
        ),
    ] = None,
    *,
    change: ForcedFlags,
) -> None:
    """Load or unload a model on replicas: on all of them, or on none.

    Replicas must run with --model-control-mode=explicit. After a load they are compared and warmed
    up; what fails, and an abort, is undone. `parity` compares what replicas have now.
    """
    given = _words(action, words or [])
    if action is ModelAction.LIST:
        _list(_number(given[0]) if given else 0, change)
        return
    if action is ModelAction.PARITY:
        _parity(given, endpoints, change)
        return
    bodies = [_body(each) for each in warmup or ()]
    if (version or bodies) and action is not ModelAction.LOAD:
        raise typer.BadParameter(f"--version and --warmup are of load, not of {action}")
    ids = [each for each in endpoints.split(",") if each]
    if action is ModelAction.ABORT:
        fields: dict[str, Any] = {"operation": _number(given[0])}
    else:
        pool, name = given
        fields = {"pool": pool, "model": name, "endpoints": ids, "parallel": parallel}
    if action is ModelAction.LOAD:
        fields |= {"version": version, "warmup": bodies}

    from tidegate.cli.client import CHANGE_MARGIN_S, READ_TIMEOUT_S, admin, request_of
    from tidegate.cli.verbs.loading.operations import data_of, failure, lines_of
    from tidegate.terminal.output import emit, spinner

    options, call = change.to_proto(), f"{action.title()}Model"
    options.wait = change.wait  # a dry run is waited for, too: it ends with the check
    request = request_of(call, options=options, **fields)
    bound = CHANGE_MARGIN_S + (change.timeout if change.wait else READ_TIMEOUT_S)
    with (
        admin(change.server, change.tls, change=True) as stub,
        spinner("waiting for the replicas"),
    ):
        answer = getattr(stub, call)(request, timeout=bound)
    emit(data_of(answer), [lines_of(answer)], change.output)
    if action is ModelAction.ABORT:
        return
    error = failure(answer, waited=change.wait, timeout_s=change.timeout)
    if error is not None:
        raise error


def _list(number: int, change: ForcedFlags) -> None:
    from tidegate.cli.client import ask
    from tidegate.cli.verbs.loading.operations import data_of, lines_of, rows_of
    from tidegate.terminal.errors import CliError
    from tidegate.terminal.output import emit, table

    found = ask(change, "GetOperations", operation=number).operations
    if number and not found:
        raise CliError(f"no operation {number}; `tidegate model list` shows those that are kept")
    if number:
        emit(data_of(found[0]), [lines_of(found[0])], change.output)
        return
    columns = ("#operation", "began", "what", "pool", "model", "state", "author", "why")
    shown = [table(columns, rows_of(found))] if found else ["no operation on a model so far"]
    emit([data_of(each) for each in found], shown, change.output)


def _parity(given: list[str], endpoints: str, change: ForcedFlags) -> None:
    from tidegate.cli.client import CHANGE_MARGIN_S, ask
    from tidegate.cli.verbs.loading.operations import data_of, parity_failure, parity_rows
    from tidegate.terminal.output import emit, table

    (pool, name), bound = given, change.timeout + CHANGE_MARGIN_S
    answer = ask(change, "GetModelParity", bound, pool=pool, model=name, endpoints=endpoints)
    columns = ("replica", "configuration", "versions", "platform")
    emit(data_of(answer), [table(columns, parity_rows(answer))], change.output)
    error = parity_failure(answer)
    if error is not None:
        raise error


def _words(action: ModelAction, words: list[str]) -> list[str]:
    """Return what follows the action.

    Raises:
        typer.BadParameter: It is too much or too little.
    """
    form, most = WORDS[action]
    least = 0 if action is ModelAction.LIST else most
    if not least <= len(words) <= most:
        raise typer.BadParameter(f"write: tidegate model {action} {form}")
    return words


def _number(word: str) -> int:
    if not (word.isascii() and word.isdigit()) or len(word) > len(str(2**63)):
        raise typer.BadParameter(f"{word!r:.80} is no number of an operation; see `model list`")
    return int(word)


def _body(path: Path) -> str:
    from tidegate.terminal.errors import CliError

    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read {path}: {error}") from error
    if len(text.encode()) > MAX_WARMUP_BYTES:
        raise CliError(f"{path} is larger than 1 MiB")
    return text
