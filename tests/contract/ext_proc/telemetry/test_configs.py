"""How models of Tritons run requests, asked of real servers in this process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
from aiohttp import web

from ext_proc.telemetry import configs
from ext_proc.telemetry.configs import AskedTriton, ModelConfig, ModelConfigs, read_config

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"model_transaction_policy": {"decoupled": true}}', ModelConfig(decoupled=True)),
        (b'{"model_transaction_policy": {"decoupled": false}}', ModelConfig(decoupled=False)),
        (b'{"name": "m"}', ModelConfig(decoupled=False)),
        (b'{"model_transaction_policy": 7, "instance_group": 7}', ModelConfig(decoupled=False)),
        (b"[]", None),
        (b"<html>", None),
    ],
)
def test_what_a_configuration_says(data, expected):
    """Without a policy a model is not decoupled; what is no configuration says nothing."""
    assert read_config(data) == expected


GROUP = {"count": 2, "kind": "KIND_CPU", "gpus": []}


@pytest.mark.parametrize(
    ("config", "slots", "batch"),
    [
        ({"max_batch_size": 8, "dynamic_batching": {}, "instance_group": [GROUP]}, 16, 8),
        (
            {"max_batch_size": 8, "sequence_batching": {"direct": {}}, "instance_group": [GROUP]},
            16,
            1,
        ),
        ({"max_batch_size": 0, "sequence_batching": {}, "instance_group": [GROUP]}, 2, 1),
        ({"max_batch_size": 8, "instance_group": [GROUP]}, 2, 1),  # no batcher puts them together
        ({"instance_group": [GROUP, GROUP | {"passive": True}]}, 2, 1),
        ({"instance_group": [{"count": 2, "kind": "KIND_GPU", "gpus": [0, 1, 2]}]}, 6, 1),
        ({"instance_group": [GROUP], "model_transaction_policy": {"decoupled": True}}, None, 1),
        ({"instance_group": []}, None, 1),
        ({"instance_group": [{"count": -1}, 7]}, None, 1),
        ({"max_batch_size": "8", "dynamic_batching": {}, "instance_group": [GROUP]}, None, 1),
    ],
)
def test_how_many_requests_a_model_runs_at_once(config, slots, batch):
    """Instances times the batch that a batcher makes; unknown is ``None``.

    An instance with a dynamic batcher takes a whole batch when it gets free.
    """
    read = read_config(orjson.dumps(config))
    assert read is not None
    assert (read.slots, read.batch) == (slots, batch)


def test_the_recorded_configuration_of_a_triton():
    """Triton 2.51 lists an instance; ``max_batch_size`` counts with a batcher only."""
    data = (FIXTURES / "triton-2.51.0" / "model_config.json").read_bytes()
    assert read_config(data) == ModelConfig(decoupled=False, slots=1)


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
    models = ModelConfigs(changed.set)
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
        await known(models, changed, lambda each: each.decoupled("r1") == {"m"})
        assert asked == ["a model", "m"]
        models.set_targets({"r1": AskedTriton(address, frozenset({"m", "a model"}))})
        answers["a model"] = config(on=True)
        models.restarted("r1")
        await known(models, changed, lambda each: each.decoupled("r1") == {"m", "a model"})
        assert asked == ["a model", "m"] * 2
        models.set_targets({})
        assert models.decoupled("r1") == frozenset()


async def test_a_model_that_is_not_loaded_is_asked_again(monkeypatch):
    """Triton answers 400 until it is."""
    monkeypatch.setattr(configs, "AGAIN_S", 0.01)
    answers = {}
    async with replica(answers) as (address, asked), asking() as (models, changed):
        models.set_targets({"r1": AskedTriton(address, frozenset({"m"}))})
        async with asyncio.timeout(60):
            while len(asked) < 3:  # noqa: ASYNC110 - the server does not show it
                await asyncio.sleep(0.01)
        answers["m"] = config(on=True)
        await known(models, changed, lambda each: each.decoupled("r1") == {"m"})


async def test_what_is_no_triton_is_left_alone(monkeypatch):
    """Engines of their own answer 404; a page that is too large says nothing."""
    monkeypatch.setattr(configs, "AGAIN_S", 0.01)
    monkeypatch.setattr(configs, "MAX_BYTES", 100)
    other = {"m": (404, b""), "n": config(on=True)}
    large = {"m": (200, b" " * 200 + config(on=True)[1]), "n": config(on=True)}
    async with (
        replica(other) as (engine, asked),
        replica(large) as (triton, again),
        asking() as (models, changed),
    ):
        both = frozenset({"m", "n"})
        models.set_targets({"r1": AskedTriton(engine, both), "r2": AskedTriton(triton, both)})
        await known(models, changed, lambda each: each.decoupled("r2") == {"n"})
        async with asyncio.timeout(60):
            while again.count("m") < 4:  # noqa: ASYNC110 - the server does not show it
                await asyncio.sleep(0.01)
        assert asked == ["m"]
        assert models.decoupled("r1") == frozenset()


async def test_an_ensemble_has_the_slots_of_its_steps():
    """Its steps are asked for; it is not known while one of them is not, or if it names itself."""

    def ensemble(*steps):
        named = [{"model_name": each} for each in steps]
        return 200, orjson.dumps({"ensemble_scheduling": {"step": named}})

    two = 200, orjson.dumps({"instance_group": [GROUP]})
    answers = {
        "whole": ensemble("a", "b", "a"),
        "nested": ensemble("whole", "a"),
        "part": ensemble("a", "streams"),
        "endless": ensemble("endless"),
        "a": two,
        "b": two,
        "streams": config(on=True),
    }
    async with replica(answers) as (address, _), asking() as (models, changed):
        listed = frozenset({"whole", "nested", "part", "endless"})
        models.set_targets({"r1": AskedTriton(address, listed)})
        await known(models, changed, lambda each: each.decoupled("r1") == {"streams"})
        assert models.slots("r1") == {"whole": 4, "nested": 6, "a": 2, "b": 2}
