"""Chat templates from files, and engines that are asked about them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from ext_proc.control import chat_files
from ext_proc.control.chat_files import (
    LEAST,
    MAX_TEMPLATES,
    PROBE,
    TEXT,
    ChatFiles,
    ChatTemplateError,
    load,
)
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool
from ext_proc.routing.values.request import Features, Form

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
CONFIG = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
MESSAGES = {"messages": [{"role": "user", "content": "tide"}]}


class Letters:
    """Each character is a token."""

    def encode(self, text, *, special=True):  # noqa: ARG002 - an interface
        return [ord(each) for each in text]


def pool(name="llm", template="/t.json", address=None, **more):
    endpoint = Endpoint(EndpointKey("v1", 1), "stable", address, None)
    endpoints = (endpoint,) if address else ()
    return Pool(name, tokenizer="/k.json", chat_template=template, endpoints=endpoints, **more)


def by_name(*pools):
    return {each.name: each for each in pools}


async def loaded(files, *pools):
    """Let the files of pools be read."""
    files.set_pools(by_name(*pools))
    for each in pools:
        await files._load(each)
    return files


@pytest.fixture
def read(tmp_path):
    """Write a template and name its file in all pools."""
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture
async def engine():
    """An engine that answers with what it is told; ``asked`` has the bodies."""
    found = SimpleNamespace(asked=[], answer={"tokens": []}, status=200)

    async def tokenize(request):
        asked = await request.json()
        found.asked.append(asked)
        given = found.answer
        if callable(given):
            given = given(asked)
        body = given if isinstance(given, str) else json.dumps(given)
        return web.Response(text=body, status=found.status)

    app = web.Application()
    app.router.add_post("/tokenize", tokenize)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.address = f"127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


def ids(text):
    return [ord(each) for each in text]


def test_a_config_has_the_template_and_special_tokens(read):
    """It is the file that models come with."""
    assert load(read).render(MESSAGES) == "<s>tide"


@pytest.mark.usefixtures("read")
def test_a_template_alone_takes_special_tokens_from_beside_it(tmp_path):
    """Engines are started with such files (``--chat-template``)."""
    other = tmp_path / "chat.jinja"
    other.write_text("{{ bos_token }}!")
    assert load(str(other)).render(MESSAGES) == "<s>!"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "cannot be read"),
        ("[]", "not a JSON object"),
        ("{}", "no `chat_template`"),
        ('{"chat_template": [{"name": "rag", "template": "x"}]}', "no `chat_template`"),
        ('{"chat_template": "{% for %}"}', "cannot be used here"),
        ("[" * 100_000, "nests too deeply"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_bad_file_is_named_with_its_reason(tmp_path, content, reason):
    """An operator reads it in the log."""
    path = tmp_path / "tokenizer_config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ChatTemplateError, match=reason):
        load(str(path))


def test_a_file_of_any_size_is_not_read(read, monkeypatch):
    """The bound is far above today's files."""
    monkeypatch.setattr(chat_files, "MAX_FILE_BYTES", 10)
    with pytest.raises(ChatTemplateError, match="at most 10 are read"):
        load(read)


def test_the_default_of_several_templates_is_used(tmp_path):
    """Some configurations have templates by name."""
    path = tmp_path / "tokenizer_config.json"
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    path.write_text(json.dumps({"chat_template": named}))
    assert load(str(path)).render(MESSAGES) == "d"


def test_without_the_package_the_fix_is_said(read, monkeypatch):
    """The extra is optional."""
    monkeypatch.setitem(sys.modules, "jinja2.exceptions", None)
    with pytest.raises(ChatTemplateError, match=r"tidegate\[chats\]"):
        load(read)


async def test_a_pool_waits_for_its_tokenizer(read):
    """Both are needed, and are read apart."""
    tokenizers: dict[str, Letters] = {}
    files = await loaded(ChatFiles(tokenizers), pool(template=read))
    assert files.state() == {"llm": {"template": "not loaded"}}
    tokenizers["/k.json"] = Letters()
    await loaded(files, pool(template=read))
    assert files.state()["llm"]["template"] == "unchecked"


async def test_a_template_that_fails_is_logged_once():
    """And tried again with another name."""
    files = ChatFiles({"/k.json": Letters()})
    with capture_logs() as logs:
        for path in ("/none.json", "/none.json", "/other.json"):
            await loaded(files, pool(template=path))
    assert [each["event"] for each in logs] == ["chat_template_not_loaded"] * 2
    assert files.ready == {}


async def test_what_no_pool_names_is_dropped(read):
    """Its cache of ids too."""
    files = await loaded(ChatFiles({"/k.json": Letters()}), pool(template=read))
    kept = files.ready["llm"]
    files.set_pools(by_name(pool(template=read, block_tokens=16)))
    assert files.ready["llm"] is kept
    files.set_pools({})
    assert (files.ready, files.state()) == ({}, {})


async def test_pools_beyond_the_bound_have_no_template(read):
    """Each has a cache of its own."""
    files = ChatFiles({"/k.json": Letters()})
    pools = [pool(f"p{number:02}", template=read) for number in range(MAX_TEMPLATES + 1)]
    with capture_logs() as logs:
        files.set_pools(by_name(*pools))
        files.set_pools(by_name(*pools))
    assert len(files.state()) == MAX_TEMPLATES
    assert [each["event"] for each in logs] == ["chat_template_not_loaded"]


async def test_an_engine_is_asked_when_a_template_is_loaded(read, engine):
    """So that the first chats are predicted rightly."""
    files = ChatFiles({"/k.json": Letters()})
    await loaded(files, pool(template=read, address=engine.address, models=frozenset({"m"})))
    text = "<s>" + "".join(each["content"] for each in PROBE["messages"])
    engine.answer = {"tokens": ids(text)}
    with capture_logs() as logs:
        async with files.client:
            await files.check("llm", due=False)
            await files.check("llm", due=False)
    assert engine.asked == [{**PROBE, "model": "m"}]
    assert files.state()["llm"]["checks"] == {"agreed": 1, "differed": 0, "unanswered": 0}
    assert [each["event"] for each in logs] == ["chat_template_agrees"]


async def test_a_clients_chat_is_asked_about(read, engine):
    """With what an engine renders from; a difference is logged once."""
    files = ChatFiles({"/k.json": Letters()})
    await loaded(files, pool(template=read, address=engine.address))
    body = {**MESSAGES, "model": "m", "reasoning_effort": "low", "temperature": 1, "tools": None}
    engine.answer = {"tokens": ids("other")}
    with capture_logs() as logs:
        async with files.client:
            for _ in range(3):
                await files.check("llm", due=True)
                features = Features(Form.OPENAI, chat=body)
                files.ready["llm"].blocks(features, 4, 0)
    assert engine.asked[1] == {
        **MESSAGES,
        "model": "m",
        "tools": None,
        "chat_template_kwargs": {"reasoning_effort": "low", "enable_thinking": True},
    }
    assert [each["event"] for each in logs] == ["chat_template_differs"]
    assert files.state()["llm"]["template"] == "differs"


async def asked(files, times=1):
    """Let a pool's engines be asked about a client's chat."""
    async with files.client:
        for _ in range(times):
            files.ready["llm"].want_sample()
            files.ready["llm"].blocks(Features(Form.OPENAI, chat=MESSAGES), 4, 0)
            await files.check("llm", due=False)


async def test_a_replica_with_another_template_is_named(read, monkeypatch):
    """Its peer has the pool's; the pool's chats stay exact."""
    files = ChatFiles({"/k.json": Letters()})
    one = pool(template=read, address="v1")
    two = Endpoint(EndpointKey("v2", 1), "stable", "v2", None)
    await loaded(files, replace(one, endpoints=(*one.endpoints, two)))
    more = "!"

    async def ask(pool, address, members):  # noqa: ARG001 - an interface
        text = "<s>" + "".join(each["content"] for each in members["messages"])
        return ids(text + (more if address == "v2" else ""))

    monkeypatch.setattr(files, "_ask", ask)
    probe = 3 + sum(len(each["content"]) for each in PROBE["messages"])
    await asked(files)
    assert [(place[0], place[1].id, why) for place, why in files.notes()] == [
        ("llm", "v2", f"it makes {probe + 1} tokens of a test text, the picker {probe}")
    ]
    more = ""
    await asked(files)
    assert not list(files.notes())


async def test_unusual_chats_are_no_other_template(read, engine):
    """The engine agrees about a usual one. If half of the latest differ, it is named."""
    files = ChatFiles({"/k.json": Letters()})
    await loaded(files, pool(template=read, address=engine.address))
    probe = "<s>" + "".join(each["content"] for each in PROBE["messages"])
    tide = {"tokens": ids("other")}
    engine.answer = lambda body: (
        tide if body["messages"][0]["content"] == "tide" else {"tokens": ids(probe)}
    )
    await asked(files, LEAST - 1)
    assert not list(files.notes())
    await asked(files)
    assert [why for _, why in files.notes()] == ["it has other tokens of 3 of its latest 3 chats"]


async def test_an_engine_that_counts_other_tokens_is_named(read):
    """Without /tokenize: its answers tell how many tokens a prompt has."""
    files = ChatFiles({"/k.json": Letters()})
    await loaded(files, pool(template=read, address="127.0.0.1:1"))
    key = EndpointKey("v1", 1)
    for counted in (9, 9, 9, 12, 13, 9, 14):
        files.counted("llm", key, 9, counted)
    assert not list(files.notes())
    files.counted("llm", key, 9, 99)
    files.counted("none", key, 9, 99)
    assert [why for _, why in files.notes()] == ["it has other tokens of 4 of its latest 8 chats"]
    assert files.checks == {("llm", True): 4, ("llm", False): 4}
    assert files.ready["llm"].trusted is False
    files.set_pools({})
    assert not list(files.notes())


async def test_another_tokenizer_is_named(engine):
    """Of a pool without a template; its prompts are texts."""
    files = ChatFiles({"/k.json": Letters()})
    files.set_pools(by_name(pool(template="", address=engine.address)))
    engine.answer = {"tokens": ids(TEXT)}
    async with files.client:
        await files.check_text("llm")
        assert not list(files.notes())
        engine.answer = {"tokens": ids(TEXT.upper())}
        await files.check_text("llm")
        await files.check_text("unknown")
    assert engine.asked == [{"prompt": TEXT}] * 2
    ((place, why),) = files.notes()
    assert (place[1].id, why) == ("v1", f"its {len(TEXT)} tokens of a test text are others")


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (404, {}),
        (200, "no JSON"),
        (200, []),
        (200, {"tokens": "text"}),
        (200, {"tokens": ["a"]}),
        (200, "[" * 5000),
        (200, json.dumps({"tokens": [1] * 500})),
    ],
)
async def test_an_engine_that_answers_no_ids_says_nothing(
    read, engine, status, answer, monkeypatch
):
    """SGLang and others have no such endpoint, or another one."""
    monkeypatch.setattr(chat_files, "MAX_ANSWER_BYTES", 1000)
    files = ChatFiles({"/k.json": Letters()})
    await loaded(files, pool(template=read, address=engine.address))
    engine.status, engine.answer = status, answer
    async with files.client:
        await files.check("llm", due=False)
    found = files.state()["llm"]
    assert (found["template"], found["checks"]["unanswered"]) == ("unchecked", 1)


async def test_without_an_engine_nothing_is_asked(read):
    """A pool may be empty, and an engine may be gone."""
    files = ChatFiles({"/k.json": Letters()})
    async with files.client:
        await loaded(files, pool(template=read))
        await files.check("llm", due=False)
        await files.check("unknown", due=False)
        files.set_pools({})
        await loaded(files, pool(template=read, address="127.0.0.1:1"))
        await files.check("llm", due=False)
    assert files.state()["llm"]["checks"]["unanswered"] == 1
