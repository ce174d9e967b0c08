"""Which models of Tritons are decoupled, asked of real servers in this process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import orjson
import pytest
from aiohttp import web

from ext_proc.telemetry import decoupled
from ext_proc.telemetry.decoupled import AskedTriton, DecoupledModels, decoupled_in


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"model_transaction_policy": {"decoupled": true}}', True),
        (b'{"model_transaction_policy": {"decoupled": false}}', False),
        (b'{"name": "m"}', False),
        (b'{"model_transaction_policy": 7}', False),
        (b"[]", None),
        (b"<html>", None),
    ],
)
def test_what_a_configuration_says(data, expected):
    """Without a policy a model is not decoupled; what is no configuration says nothing."""
    assert decoupled_in(data) is expected


@asynccontextmanager
async def replica(answers):
    """Serve configurations by model, as (status, body); yield the address and what was asked."""
    asked = []

    async def answer(request: web.Request) -> web.Response:
        model = request.match_info["model"]
        asked.append(model)
        status, body = answers.get(model, (400, b""))
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_get("/v2/models/{model}/config", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


@asynccontextmanager
async def asking():
    """Run; yield the models and an event of each change."""
    changed = asyncio.Event()
    models = DecoupledModels(changed.set)
    task = asyncio.create_task(models.run())
    try:
        yield models, changed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def config(*, on):
    return 200, orjson.dumps({"model_transaction_policy": {"decoupled": on}})


async def known(models, changed, condition):
    """Wait until the models are as wanted."""
    async with asyncio.timeout(60):
        while not condition(models):
            changed.clear()
            await changed.wait()


async def test_models_are_asked_once_and_after_a_restart():
    """A restarted replica may have another configuration."""
    answers = {"m": config(on=True), "a model": config(on=False)}
    async with replica(answers) as (address, asked), asking() as (models, changed):
        models.set_targets({"r1": AskedTriton(address, frozenset({"m", "a model"}))})
        await known(models, changed, lambda each: each.of("r1") == {"m"})
        assert asked == ["a model", "m"]
        models.set_targets({"r1": AskedTriton(address, frozenset({"m", "a model"}))})
        answers["a model"] = config(on=True)
        models.restarted("r1")
        await known(models, changed, lambda each: each.of("r1") == {"m", "a model"})
        assert asked == ["a model", "m"] * 2
        models.set_targets({})
        assert models.of("r1") == frozenset()


async def test_a_model_that_is_not_loaded_is_asked_again(monkeypatch):
    """Triton answers 400 until it is."""
    monkeypatch.setattr(decoupled, "AGAIN_S", 0.01)
    answers = {}
    async with replica(answers) as (address, asked), asking() as (models, changed):
        models.set_targets({"r1": AskedTriton(address, frozenset({"m"}))})
        async with asyncio.timeout(60):
            while len(asked) < 3:  # noqa: ASYNC110 - the server does not show it
                await asyncio.sleep(0.01)
        answers["m"] = config(on=True)
        await known(models, changed, lambda each: each.of("r1") == {"m"})


async def test_what_is_no_triton_is_left_alone(monkeypatch):
    """Engines of their own answer 404; a page that is too large says nothing."""
    monkeypatch.setattr(decoupled, "AGAIN_S", 0.01)
    monkeypatch.setattr(decoupled, "MAX_BYTES", 100)
    other = {"m": (404, b""), "n": config(on=True)}
    large = {"m": (200, b" " * 200 + config(on=True)[1]), "n": config(on=True)}
    async with (
        replica(other) as (engine, asked),
        replica(large) as (triton, again),
        asking() as (models, changed),
    ):
        both = frozenset({"m", "n"})
        models.set_targets({"r1": AskedTriton(engine, both), "r2": AskedTriton(triton, both)})
        await known(models, changed, lambda each: each.of("r2") == {"n"})
        async with asyncio.timeout(60):
            while again.count("m") < 4:  # noqa: ASYNC110 - the server does not show it
                await asyncio.sleep(0.01)
        assert asked == ["m"]
        assert models.of("r1") == frozenset()
