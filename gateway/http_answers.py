"""Answers over HTTP, in Triton's form.

Source: Triton's ``src/http_server.cc`` (its routes and statuses), KServe's HTTP API, and OpenAI's
list of models.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import orjson

from gateway.merge import engines, index, parity, statistics
from gateway.targets import UnknownReplicaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.values.pool import Pool
    from gateway.merge.answers import Said
    from gateway.questions import Heard, Questions, Scope

JSON: Final = "application/json"
PLAIN: Final = "text/plain"
_MODEL: Final = re.compile(
    r"/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[0-9]+))?(/(?P<verb>ready|config|stats))?"
)
_INDEX: Final = re.compile(r"/v2/repository(/[^/]+)?/index")
_LIST: Final = re.compile(r".*/v1/models(?P<one>/.+)?")
_READY: Final = "/v2/health/ready"
_OF_SERVER: Final = frozenset({"/v2", "/v2/", _READY, "/v2/models/stats"})
_NOT_ALLOWED: Final = b'{"error":"Method Not Allowed"}'
"""What Triton answers to ``HEAD``."""
_OK: Final = 200


class HttpQuestion(NamedTuple):
    """A client's request."""

    method: str
    path: str
    """As it stands in the request, without the query."""
    body: bytes = b""


class HttpReply(NamedTuple):
    """An answer to a client."""

    status: int
    body: bytes = b""
    content_type: str = ""
    note: str = ""
    """On the replicas, for the header."""
    reason: str = ""
    """Machine-readable reason of a refusal."""


def refusal(status: int, reason: str, text: str, note: str = "") -> HttpReply:
    """Return a refusal as Triton writes errors."""
    return HttpReply(status, orjson.dumps({"error": text}), JSON, note, reason)


class HttpAnswers:
    """Answers requests.

    Args:
        questions: Asks the replicas.
    """

    def __init__(self, questions: Questions) -> None:
        self._questions = questions

    async def answer(self, asked: HttpQuestion, scope: Scope) -> HttpReply:
        """Return the answer to a request."""
        if asked.method == "HEAD":
            kind = PLAIN if unquote(asked.path) == _READY else JSON
            return HttpReply(405, _NOT_ALLOWED, kind)  # only its length is sent
        wanted = "POST" if _INDEX.fullmatch(unquote(asked.path)) else "GET"
        if asked.method != wanted:
            return _unknown()
        try:
            return await self._answer(asked, scope)
        except UnknownReplicaError as error:
            return refusal(
                404, "unknown-endpoint", f"no replica {error} of these pools speaks HTTP"
            )

    async def _answer(self, asked: HttpQuestion, scope: Scope) -> HttpReply:
        path = unquote(asked.path)
        if path == "/v2/health/live":
            return HttpReply(_OK)
        if path == _READY and not scope.endpoint:
            verdict = await self._questions.ready(scope)
            return HttpReply(_OK if verdict.ready else 400, b"", PLAIN, verdict.note)
        if _INDEX.fullmatch(path):
            return await self._index(asked, scope)
        if _LIST.fullmatch(path):
            return await self._list(asked, scope)
        return await self._about(asked, scope, path)

    async def _about(self, asked: HttpQuestion, scope: Scope, path: str) -> HttpReply:
        found = None if path == "/v2/models/stats" else _MODEL.fullmatch(path)
        if found is None and path not in _OF_SERVER:
            return _unknown()
        model, verb = ("", "") if found is None else (found["model"], found["verb"])
        unversioned = found is not None and not found["version"]
        if verb == "stats" or path == "/v2/models/stats":
            return await self._statistics(asked, scope, model, unversioned=unversioned)
        heard = await self._ask(asked, scope, model, unversioned=unversioned)
        if verb == "config":
            return described(heard, "", parity.versions_of, parity.form_of_json_config)
        if verb == "ready" or path == _READY:
            return relayed(heard)
        if found is None:
            return described(heard, "extensions", parity.common, needed=True)
        return described(heard, "versions", parity.versions_of)

    async def _ask(
        self, asked: HttpQuestion, scope: Scope, model: str = "", *, unversioned: bool = False
    ) -> Heard:
        pools = self._questions.pools_about(scope, model)
        return await self._send(asked, scope, pools, unversioned=model if unversioned else "")

    async def _send(
        self,
        asked: HttpQuestion,
        scope: Scope,
        pools: tuple[Pool, ...],
        body: bytes | None = None,
        unversioned: str = "",
    ) -> Heard:
        sent = asked.body if body is None else body
        headers = {"content-type": JSON} if sent else {}
        return await self._questions.http(
            pools,
            scope,
            asked.method,
            asked.path,
            body=sent,
            headers=headers,
            unversioned=unversioned,
        )

    # --- merged answers -------------------------------------------------------------------------

    async def _statistics(
        self, asked: HttpQuestion, scope: Scope, model: str, *, unversioned: bool
    ) -> HttpReply:
        heard = await self._ask(asked, scope, model, unversioned=unversioned)
        if scope.endpoint or not heard.good:
            return relayed(heard)
        rows: dict[str, list[dict[str, Any]]] = {}
        broken = set()
        for each in heard.good:
            try:
                rows[each.replica] = statistics.rows_of(orjson.loads(each.body))
            except (orjson.JSONDecodeError, statistics.StatisticsError):
                broken.add(each.replica)
        heard = heard.with_malformed(frozenset(broken))
        if not rows:
            return relayed(heard)
        body = orjson.dumps({"model_stats": self._questions.sums(heard, rows)})
        return HttpReply(_OK, body, heard.good[0].text, heard.note())

    async def _index(self, asked: HttpQuestion, scope: Scope) -> HttpReply:
        wanted = _filter_of(asked.body)
        if scope.endpoint or wanted is None:
            return relayed(await self._ask(asked, scope))
        pools = self._questions.in_sight(scope)
        heard = await self._send(asked, scope, pools, b"{}")
        if not heard.good:
            return relayed(heard)
        entries: dict[str, list[index.IndexEntry] | None] = {
            each.replica: None for each in heard.said
        }
        broken = set()
        for each in heard.good:
            try:
                entries[each.replica] = index.entries_of(orjson.loads(each.body))
            except (orjson.JSONDecodeError, index.UnreadableIndexError):
                broken.add(each.replica)
        heard = heard.with_malformed(frozenset(broken))
        if not heard.good:
            return relayed(heard)
        found = index.merged(entries, expected_in(pools))
        body = orjson.dumps(index.rows_of(found, ready=wanted))
        return HttpReply(_OK, body, heard.good[0].text, heard.note())

    async def _list(self, asked: HttpQuestion, scope: Scope) -> HttpReply:
        pools = tuple(pool for pool in self._questions.in_sight(scope) if pool.paths)
        heard = await self._send(asked, scope, pools)
        one = _LIST.fullmatch(unquote(asked.path))
        if (one is not None and one["one"]) or heard.same() is not None or not heard.good:
            return relayed(heard)
        lists, broken = parity.read_all(
            {each.replica: each.body for each in heard.good}, engines.models_of
        )
        heard = heard.with_malformed(broken)
        if not lists:
            return relayed(heard)
        body = orjson.dumps(engines.merged(lists.values()))
        return HttpReply(_OK, body, heard.good[0].text, heard.note())


def expected_in(pools: tuple[Pool, ...]) -> Callable[[str], list[str]]:
    """Return a function that names the replicas of the pools that list a model."""

    def expected(model: str) -> list[str]:
        return [each.key.id for pool in pools if model in pool.models for each in pool.endpoints]

    return expected


def relayed(heard: Heard) -> HttpReply:
    """Return the first good answer, or the usual error."""
    good = heard.good
    chosen: Said | None = good[0] if good else heard.error
    if chosen is None:
        return refusal(503, "unavailable", silence(heard), heard.note())
    return HttpReply(chosen.status, chosen.body, chosen.text, heard.note())


def silence(heard: Heard) -> str:
    """Return, as a sentence, that no replica answered, and why."""
    if not heard.said:
        return "no replica of these pools answers such calls"
    told = ", ".join(f"{each.replica} {each.fault}" for each in heard.said[:8])
    return f"no replica answered: {told}"


def _unknown() -> HttpReply:
    return refusal(404, "unknown-path", "the gateway answers no such question")


def _filter_of(body: bytes) -> bool | None:
    """Return whether only READY models are wanted; ``None`` if the body says something else."""
    if not body:
        return False
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict) or value.keys() - {"ready"}:
        return None
    wanted = value.get("ready", False)
    return wanted if isinstance(wanted, bool) else None


def described(
    heard: Heard,
    listed: str,
    together: Callable[[dict[str, list[str]]], list[str]],
    form: Callable[[bytes], str] = parity.form_of_json,
    *,
    needed: bool = False,
) -> HttpReply:
    """Return the usual description.

    Args:
        heard: The answers.
        listed: Key of a list that may differ; empty = none.
        together: Makes one list of the replicas' lists.
        form: Returns the canonical form of a description.
        needed: Whether an answer without the list is none.
    """
    if heard.same() is not None or not heard.good:
        return relayed(heard)

    def read(body: bytes) -> tuple[str, list[str]]:
        value = parity.parsed(body)
        if needed and listed not in value:
            raise parity.DescriptionError
        several = parity.texts(value.pop(listed, [])) if listed else []
        return form(orjson.dumps(value)), several

    read_, broken = parity.read_all({each.replica: each.body for each in heard.good}, read)
    heard = heard.with_malformed(broken)
    if not read_:
        return relayed(heard)
    first, others = parity.usual({replica: form for replica, (form, _) in read_.items()})
    chosen = next(each for each in heard.good if each.replica == first)
    note = heard.note(dict.fromkeys(others, "differs"))
    if not listed:
        return HttpReply(chosen.status, chosen.body, chosen.text, note)
    value = parity.parsed(chosen.body)
    value[listed] = together({replica: several for replica, (_, several) in read_.items()})
    return HttpReply(chosen.status, orjson.dumps(value), chosen.text, note)
