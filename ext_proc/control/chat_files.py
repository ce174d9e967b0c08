"""Loads pools' chat templates from local files, and asks their engines whether they agree.

Rules:

1. A file is read once, in a thread, when a pool names it and its tokenizer is loaded. A name that
   ends in ``.json`` is a ``tokenizer_config.json``; any other file is the template itself, and the
   special tokens are those of a ``tokenizer_config.json`` beside it.
2. A file that cannot be used is logged once, with the fix; the pool's chats then have the blocks of
   chats without a template. It is tried again when a pool's files change.
3. Every ``CHECK_S``, and at once with ``PROBE`` when a template is loaded, up to ``AT_ONCE``
   engines of each pool get a chat that the pool's engines have just got from a client, at
   ``/tokenize``, and their ids are compared. An engine that answers anything but ids says nothing.
   One that differs gets ``PROBE``, too, which tells an unusual chat from another template. What
   differs is logged when the verdict on a template changes.
4. Engines of pools with a tokenizer and no template get ``TEXT`` every ``CHECK_S``.
5. A replica is known to have other tokens while ``PROBE`` or ``TEXT`` differs there, or at least
   half of its latest ``LATEST`` chats did, and ``LEAST`` of them. Where engines count the tokens of
   chats in their answers (``telemetry.usage``), these counts are such answers.
6. At most ``MAX_TEMPLATES`` pools have a template, and as many a tokenizer alone; files have at
   most ``MAX_FILE_BYTES``, answers ``MAX_ANSWER_BYTES``.
7. Where the pool speaks TLS to its replicas, so do questions (``ReplicaClient``).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
import structlog

from ext_proc.control.tokenizer_files import FileTokenizer
from ext_proc.requests import Chats, Pieces, Sample
from tidegate_common.upstream.client import OK, AskError, ReplicaClient, url_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ext_proc.requests import ChatTemplate, Tokenizer
    from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool
    from tidegate_common.upstream.contexts import ReplicaContexts

MAX_TEMPLATES: Final = 32
MAX_FILE_BYTES: Final = 16 * 2**20
MAX_ANSWER_BYTES: Final = 4 * 2**20
CHECK_S: Final = 5.0
AT_ONCE: Final = 4
LATEST: Final = 8
LEAST: Final = 3
TICK_S: Final = 1.0
TIMEOUT_S: Final = 5.0
_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
_ASKED: Final = ("messages", "tools", "add_generation_prompt", "prompt")
_OPTIONS: Final = ("reasoning_effort", "documents")

PROBE: Final[Mapping[str, Any]] = {
    "messages": [
        {"role": "user", "content": "What is the tide at noon?"},
        {"role": "assistant", "content": "It is high."},
        {"role": "user", "content": " And\nat six? "},
    ]
}

TEXT: Final = "What is the tide at noon?\n  1,024 m, 中 x=[1.5]"

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


class _Engine:
    """What one engine said of tokens."""

    __slots__ = ("chats", "words")

    def __init__(self) -> None:
        self.chats: deque[bool] = deque(maxlen=LATEST)
        """Whether it agreed on the latest chats."""
        self.words = ""
        """How `PROBE` or `TEXT` differs there; empty = it does not, or is not known."""

    @property
    def why(self) -> str:
        """How its tokens differ; empty = they do not, as far as is known."""
        if self.words:
            return self.words
        others = self.chats.count(False)
        if others >= LEAST and 2 * others >= len(self.chats):
            return f"it has other tokens of {others} of its latest {len(self.chats)} chats"
        return ""


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
        self.client = ReplicaClient(AT_ONCE, contexts)
        self._tokenizers = tokenizers
        self._read = read
        self._choose = choose
        self._pools: dict[str, Pool] = {}
        self._loaded: dict[str, Files] = {}
        self._failed: dict[str, Files] = {}
        self._probe: set[str] = set()
        """Pools whose template is new: `PROBE` is asked about next."""
        self._unanswered: dict[str, int] = {}
        self._plain: dict[str, Pool] = {}
        """Pools with a tokenizer and no template."""
        self._engines: dict[tuple[str, EndpointKey], _Engine] = {}
        self.checks: Counter[tuple[str, bool]] = Counter()
        """Answers of engines by pool and whether they agreed."""
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
        plain = [pool for pool in pools.values() if pool.tokenizer and not pool.chat_template]
        self._plain = {pool.name: pool for pool in plain[:MAX_TEMPLATES]}
        asked = (*self._pools.values(), *self._plain.values())
        places = {(pool.name, each.key) for pool in asked for each in pool.endpoints}
        self._engines = {k: each for k, each in self._engines.items() if k in places}
        self.checks = Counter({k: n for k, n in self.checks.items() if k[0] in pools})

    def notes(self) -> Iterator[tuple[tuple[str, EndpointKey], str]]:
        """Yield pool and replica of each engine that makes other tokens, and how that shows."""
        for place, engine in self._engines.items():
            if why := engine.why:
                yield place, why

    def counted(self, pool: str, key: EndpointKey, tokens: int, engines: int) -> None:
        """Take the tokens of a chat as they are known here, and as its engine counted them."""
        chats = self.ready.get(pool)
        if chats is not None:
            equal = tokens == engines
            chats.answered(equal=equal)
            self._engine(pool, key).chats.append(equal)
            self.checks[pool, equal] += 1

    def _engine(self, pool: str, key: EndpointKey) -> _Engine:
        return self._engines.setdefault((pool, key), _Engine())

    async def run(self) -> None:
        """Load and check until cancelled."""
        until_check = 0.0
        async with self.client:
            while True:
                await asyncio.sleep(TICK_S)
                for pool in list(self._pools.values()):
                    await self._load(pool)
                due = until_check <= 0
                until_check = CHECK_S if due else until_check - TICK_S
                for name in list(self.ready):
                    await self.check(name, due=due)
                for name in list(self._plain) if due else ():
                    await self.check_text(name)

    async def check(self, name: str, *, due: bool) -> None:
        """Ask some of a pool's engines about a chat, where one is kept.

        Args:
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
        before, differs = chats.trusted, 0
        asked = self._some(pool)
        answers = await self._answers(pool, asked, sample.members)
        for each, found in zip(asked, answers, strict=True):
            if found is not None and not await self._agrees(chats, pool, each, sample, found):
                differs = len(found)
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
                engine_tokens=differs,
                instead="chats are predicted by their text",
                fix="name the template and the tokenizer that the engines serve",
            )

    async def _agrees(
        self,
        chats: Chats,
        pool: Pool,
        each: Endpoint,
        sample: Sample,
        found: list[int],
    ) -> bool:
        """Note an engine's answer; where it differs, ask about `PROBE` too."""
        equal, probed = chats.note(sample.ids, found), sample.ids
        self.checks[pool.name, equal] += 1
        engine, answer = self._engine(pool.name, each.key), found
        if sample.members is not PROBE:
            engine.chats.append(equal)
            if not equal:
                ids = chats.ids(PROBE)
                (other,) = await self._answers(pool, [each], PROBE)
                if other is None or ids is None:
                    return False
                probed, answer = ids, other
        same = chats.equal(probed, answer)
        engine.words = "" if same else _differ(probed.tokens, answer)
        return equal

    async def check_text(self, name: str) -> None:
        """Ask some engines of a pool with a tokenizer and no template about `TEXT` (rule 4)."""
        pool = self._plain.get(name)
        tokenizer = None if pool is None else self._tokenizers.get(pool.tokenizer)
        ids = None if tokenizer is None else tokenizer.encode(TEXT)
        if pool is None or ids is None:
            return
        asked = self._some(pool)
        answers = await self._answers(pool, asked, {"prompt": TEXT})
        for each, found in zip(asked, answers, strict=True):
            if found is not None:
                equal = list(ids) == found
                self.checks[name, equal] += 1
                engine = self._engine(name, each.key)
                engine.words = "" if equal else _differ(len(ids), found)

    def _some(self, pool: Pool) -> list[Endpoint]:
        """Return the engines to ask next."""
        able = [each for each in pool.endpoints if each.http and not each.draining]
        first = int(self._choose() * len(able))
        return [able[(first + n) % len(able)] for n in range(min(AT_ONCE, len(able)))]

    async def _answers(
        self,
        pool: Pool,
        asked: Sequence[Endpoint],
        members: Mapping[str, Any],
    ) -> list[list[int] | None]:
        found = await asyncio.gather(*(self._ask(pool, each.http or "", members) for each in asked))
        missing = found.count(None)
        if missing or not asked:
            self._unanswered[pool.name] = self._unanswered.get(pool.name, 0) + max(missing, 1)
        return found

    async def _ask(self, pool: Pool, address: str, members: Mapping[str, Any]) -> list[int] | None:
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
        tls = pool.upstream_tls
        try:
            async with self.client.turn(TIMEOUT_S) as turn:
                status, answer, _ = await turn.http(
                    "POST",
                    url_at(address, "/tokenize", tls),
                    tls=tls,
                    body=orjson.dumps(body),
                    headers={"content-type": "application/json"},
                    max_bytes=MAX_ANSWER_BYTES,
                )
            document = orjson.loads(answer) if status == OK else None
        except (AskError, ValueError, TypeError):
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


def _differ(tokens: int, found: Sequence[int]) -> str:
    if tokens == len(found):
        return f"its {tokens} tokens of a test text are others"
    return f"it makes {len(found)} tokens of a test text, the picker {tokens}"


def _files(pool: Pool) -> Files:
    return Files(pool.chat_template, pool.tokenizer)
