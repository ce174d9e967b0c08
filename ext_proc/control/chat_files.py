"""Loads pools' chat templates from local files, and asks their engines whether they agree.

Rules:

1. A file is read once, in a thread, when a pool names it and its tokenizer is loaded. A name that
   ends in ``.json`` is a ``tokenizer_config.json``; any other file is the template itself, and the
   special tokens are those of a ``tokenizer_config.json`` beside it.
2. A file that cannot be used is logged once, with the fix; the pool's chats then have the blocks of
   chats without a template. It is tried again when a pool's files change.
3. Every ``CHECK_S``, and at once with ``PROBE`` when a template is loaded, one engine of each pool
   gets a chat that the pool's engines have just got from a client, at ``/tokenize``, and its ids
   are compared. An engine that answers anything but ids says nothing. What differs is logged when
   the verdict on a template changes.
4. At most ``MAX_TEMPLATES`` pools have a template; files have at most ``MAX_FILE_BYTES``, answers
   ``MAX_ANSWER_BYTES``.
5. Where the pool speaks TLS to its replicas, so do questions (``ReplicaContexts``).
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
import orjson
import structlog

from ext_proc.control.tokenizer_files import FileTokenizer
from ext_proc.requests import Chats, Pieces, Sample
from tidegate_common.upstream.contexts import ReplicaContexts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.requests import ChatTemplate, Tokenizer
    from ext_proc.routing.values.pool import Pool

MAX_TEMPLATES: Final = 32
MAX_FILE_BYTES: Final = 16 * 2**20
MAX_ANSWER_BYTES: Final = 4 * 2**20
CHECK_S: Final = 10.0
TICK_S: Final = 1.0
TIMEOUT_S: Final = 5.0
_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
_ASKED: Final = ("messages", "tools", "add_generation_prompt")
_OPTIONS: Final = ("reasoning_effort", "documents")
_OK: Final = 200

PROBE: Final[Mapping[str, Any]] = {
    "messages": [
        {"role": "user", "content": "What is the tide at noon?"},
        {"role": "assistant", "content": "It is high."},
        {"role": "user", "content": " And\nat six? "},
    ]
}

_log = structlog.stdlib.get_logger("ext_proc.control.chat_files")


class ChatTemplateError(Exception):
    """A chat template cannot be loaded; the message states the reason and the remedy."""


class Files(NamedTuple):
    """What a pool names."""

    template: str
    tokenizer: str


def load(path: str) -> ChatTemplate:
    """Load a template; this takes some ms of CPU.

    Raises:
        ChatTemplateError: The package or the file is missing, or the file has no template.
    """
    try:
        from jinja2.exceptions import TemplateError  # noqa: PLC0415 - an extra

        from ext_proc.control.chat_sandbox import SandboxedTemplate  # noqa: PLC0415
    except ImportError:
        raise ChatTemplateError(
            "the package `jinja2` is missing; install tidegate[chats] with the picker"
        ) from None
    file = Path(path)
    try:
        if file.suffix == ".json":
            config = _config(file)
            source = _source(config)
        else:
            source = _text(file)
            beside = file.with_name("tokenizer_config.json")
            config = _config(beside) if beside.exists() else {}
        return SandboxedTemplate(source, _tokens(config))
    except (OSError, ValueError) as error:
        raise ChatTemplateError(
            f"the file cannot be read ({error}); put the model's tokenizer_config.json or its"
            " chat template there"
        ) from None
    except (TemplateError, RecursionError, SyntaxError) as error:
        raise ChatTemplateError(f"the template cannot be used here ({error})") from None


def _text(file: Path) -> str:
    size = file.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ValueError(f"it has {size} bytes; at most {MAX_FILE_BYTES} are read")
    return file.read_text(encoding="utf-8")


def _config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(_text(file))
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    if not isinstance(config, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - of a file
    return config


def _source(config: Mapping[str, Any]) -> str:
    """Return the template of a ``tokenizer_config.json``, which may have several by name."""
    given = config.get("chat_template")
    if isinstance(given, list):
        named = {each.get("name"): each.get("template") for each in given if isinstance(each, dict)}
        given = named.get("default")
    if not isinstance(given, str):
        raise ValueError("it has no `chat_template`")  # noqa: TRY004 - of a file
    return given


def _tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _TOKENS:
        token = config.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            found[name] = text
    return found


class ChatFiles:
    """The chats of pools that name a template, by pool; the module states the rules.

    Args:
        tokenizers: Loaded tokenizers by path.
        read: Loads one file; runs in a thread and raises only ``ChatTemplateError``.
        choose: Returns a number in [0, 1), by which an engine is chosen.
        contexts: TLS contexts of the process; ``None`` = its own.
    """

    def __init__(
        self,
        tokenizers: Mapping[str, Tokenizer],
        read: Callable[[str], ChatTemplate] = load,
        *,
        choose: Callable[[], float] = random.random,
        contexts: ReplicaContexts | None = None,
    ) -> None:
        self._contexts = ReplicaContexts() if contexts is None else contexts
        self._tokenizers = tokenizers
        self._read = read
        self._choose = choose
        self._pools: dict[str, Pool] = {}
        self._loaded: dict[str, Files] = {}
        self._failed: dict[str, Files] = {}
        self._probe: set[str] = set()
        """Pools whose template is new: `PROBE` is asked about next."""
        self._unanswered: dict[str, int] = {}
        self.ready: dict[str, Chats] = {}
        """Chats by pool."""

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Set the pools: `run` soon loads what they name; what none names is dropped."""
        wanted = [pool for pool in pools.values() if pool.chat_template and pool.tokenizer]
        self._pools = {pool.name: pool for pool in wanted[:MAX_TEMPLATES]}
        for pool in wanted[MAX_TEMPLATES:]:
            self._give_up(pool, f"{MAX_TEMPLATES} other pools have one, the maximum")
        for name, files in list(self._loaded.items()):
            if name not in self._pools or files != _files(self._pools[name]):
                del self._loaded[name]
                del self.ready[name]
                self._unanswered.pop(name, None)
                self._probe.discard(name)
        for name in self._failed.keys() - {pool.name for pool in wanted}:
            del self._failed[name]

    async def run(self) -> None:
        """Load and check until cancelled."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        until_check = 0.0
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await asyncio.sleep(TICK_S)
                for pool in list(self._pools.values()):
                    await self._load(pool)
                due = until_check <= 0
                until_check = CHECK_S if due else until_check - TICK_S
                for name in list(self.ready):
                    await self.check(session, name, due=due)

    async def check(self, session: aiohttp.ClientSession, name: str, *, due: bool) -> None:
        """Ask one of a pool's engines about a chat, where one is kept.

        Args:
            session: Asks.
            name: The pool.
            due: Keep the next chat.
        """
        chats, pool = self.ready.get(name), self._pools.get(name)
        if chats is None or pool is None:
            return
        sample = chats.take_sample()
        if sample is None and name in self._probe and (ids := chats.ids(PROBE)) is not None:
            sample = Sample(PROBE, ids)
        if due:
            chats.want_sample()
        if sample is None:
            return
        self._probe.discard(name)
        found = await self._ask(session, pool, sample.members)
        if found is None:
            self._unanswered[name] = self._unanswered.get(name, 0) + 1
            return
        before = chats.trusted
        chats.note(sample.ids, found)
        after = chats.trusted
        if after is before:
            return
        about = {"pool": name, "template": pool.chat_template, "tokenizer": pool.tokenizer}
        if after:
            _log.info("chat_template_agrees", **about)
        else:
            _log.warning(
                "chat_template_differs",
                **about,
                tokens=sample.ids.tokens,
                engine_tokens=len(found),
                instead="chats are predicted by their text",
                fix="name the template and the tokenizer that the engines serve",
            )

    async def _ask(
        self, session: aiohttp.ClientSession, pool: Pool, members: Mapping[str, Any]
    ) -> list[int] | None:
        able = [each.http for each in pool.endpoints if each.http and not each.draining]
        if not able:
            return None
        address = able[int(self._choose() * len(able))]
        body: dict[str, Any] = {name: members[name] for name in _ASKED if name in members}
        if "model" in members:
            body["model"] = members["model"]
        elif len(pool.models) == 1:
            body["model"] = next(iter(pool.models))
        given = members.get("chat_template_kwargs")
        options: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
        options |= {each: members[each] for each in _OPTIONS if members.get(each) is not None}
        if "reasoning_effort" in options:
            options.setdefault("enable_thinking", options["reasoning_effort"] != "none")
        if options:
            body["chat_template_kwargs"] = options
        headers = {"content-type": "application/json"}
        try:
            tls = await self._contexts.options(pool.upstream_tls)
            url = f"{'https' if tls else 'http'}://{address}/tokenize"
            async with session.post(url, data=orjson.dumps(body), headers=headers, **tls) as answer:
                if answer.status != _OK:
                    return None
                document = orjson.loads(await _read_bounded(answer))
        except (aiohttp.ClientError, TimeoutError, ValueError, TypeError):
            return None
        tokens = document.get("tokens") if isinstance(document, dict) else None
        if not isinstance(tokens, list) or not all(isinstance(each, int) for each in tokens):
            return None
        return tokens

    def state(self) -> dict[str, Any]:
        """Return the state for ``/debug/state``, by pool."""
        found: dict[str, Any] = {}
        for name in self._pools:
            chats = self.ready.get(name)
            if chats is None:
                found[name] = {"template": "not loaded"}
                continue
            found[name] = chats.describe()
            found[name]["checks"]["unanswered"] = self._unanswered.get(name, 0)
        return found

    async def _load(self, pool: Pool) -> None:
        files = _files(pool)
        tokenizer = self._tokenizers.get(pool.tokenizer)
        settled = (self._loaded.get(pool.name), self._failed.get(pool.name))
        if tokenizer is None or files in settled:
            return
        boundaries = tokenizer.boundaries() if isinstance(tokenizer, FileTokenizer) else ()
        try:
            template = await asyncio.to_thread(self._read, pool.chat_template)
        except ChatTemplateError as error:
            self._give_up(pool, str(error))
            return
        pieces = await asyncio.to_thread(Pieces, tokenizer, boundaries)
        if (now := self._pools.get(pool.name)) is None or _files(now) != files:
            return
        self._loaded[pool.name] = files
        self._probe.add(pool.name)
        self.ready[pool.name] = Chats(template, pieces)
        _log.info("chat_template_loaded", pool=pool.name, path=pool.chat_template)

    def _give_up(self, pool: Pool, reason: str) -> None:
        if self._failed.get(pool.name) == _files(pool):
            return
        self._failed[pool.name] = _files(pool)
        _log.warning(
            "chat_template_not_loaded",
            pool=pool.name,
            path=pool.chat_template,
            reason=reason,
            instead="chats are predicted by their text",
        )


def _files(pool: Pool) -> Files:
    return Files(pool.chat_template, pool.tokenizer)


async def _read_bounded(answer: aiohttp.ClientResponse) -> bytes:
    """Return a body.

    Raises:
        ValueError: It is too long.
    """
    parts: list[bytes] = []
    size = 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise ValueError("the answer is too long")
        parts.append(part)
    return b"".join(parts)
