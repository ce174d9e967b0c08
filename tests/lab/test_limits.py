"""How many requests a real Triton runs at once, and what the picker says of it."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from ext_proc.telemetry.configs import AskedTriton, ModelConfigs
from support.traffic import PATIENCE_S, eventually, picker_state

CODE = Path(__file__).parents[1] / "support" / "models" / "spans" / "model.py"

TENSORS = """
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "SPAN" data_type: TYPE_FP64 dims: [ 2 ] } ]
"""
FIRST = 'output [ { name: "FIRST" data_type: TYPE_FP64 dims: [ 2 ] } ]'
PYTHON = """
backend: "python"
max_batch_size: {batch}
{more}
instance_group [ {{ kind: KIND_CPU count: {count} }} ]
"""
WAITS = "max_queue_delay_microseconds: 1000000"
MODELS = {
    "spans-dynamic": PYTHON.format(batch=4, count=2, more=f"dynamic_batching {{ {WAITS} }}"),
    "spans-alone": PYTHON.format(batch=8, count=1, more=""),
    "spans-sequence": PYTHON.format(
        batch=2,
        count=2,
        more=f"sequence_batching {{ direct {{ {WAITS} minimum_slot_utilization: 1.0 }} }}",
    ),
    "spans-steps": """
platform: "ensemble"
max_batch_size: 4
ensemble_scheduling {
  step [
    {
      model_name: "spans-dynamic"
      model_version: -1
      input_map { key: "IN" value: "IN" }
      output_map { key: "SPAN" value: "FIRST" }
    },
    {
      model_name: "spans-alone"
      model_version: -1
      input_map { key: "IN" value: "IN" }
      output_map { key: "SPAN" value: "SPAN" }
    }
  ]
}
"""
    + FIRST,
}
ENGINE = 16
"""What the language model declares (``max_running``)."""
SLOTS = {"spans-dynamic": 8, "spans-alone": 1, "spans-sequence": 4, "spans-steps": 9}


@asynccontextmanager
async def loaded(http, tritons):
    """Have one replica load the models; yield it."""
    replica = tritons.replicas[0]
    here = tritons.run.path / "repositories" / replica.name
    for name, config in MODELS.items():
        (here / name / "1").mkdir(parents=True)
        shutil.copy(CODE, here / name / "1" / "model.py")
        (here / name / "config.pbtxt").write_text(f"{config}{TENSORS}", "utf-8")
    try:
        for name in MODELS:
            async with http.post(f"{replica.http_url}/v2/repository/models/{name}/load") as answer:
                assert answer.status == 200, await answer.text()
        yield replica
    finally:
        for name in reversed(MODELS):
            async with http.post(f"{replica.http_url}/v2/repository/models/{name}/unload"):
                pass
            shutil.rmtree(here / name)


async def at_once(http, replica, model, requests):
    """Send requests together; return the most that ran at one moment, in all steps."""

    async def span(number):
        body = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}
        if model == "spans-sequence":
            ends = {"sequence_start": True, "sequence_end": True}
            body["parameters"] = {"sequence_id": number + 1, **ends}
        url = f"{replica.http_url}/v2/models/{model}/infer"
        async with http.post(url, data=orjson.dumps(body)) as answer:
            assert answer.status == 200, await answer.text()
            return [each["data"] for each in orjson.loads(await answer.read())["outputs"]]

    asked = await asyncio.gather(*(span(number) for number in range(requests)))
    spans = [each for steps in asked for each in steps]
    return max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)


async def test_slots_are_what_a_real_triton_runs_at_once(http, tritons):
    """Two instances with a dynamic batcher, a model without one, sequences, and an ensemble."""
    async with loaded(http, tritons) as replica:
        changed = asyncio.Event()
        configs = ModelConfigs(changed.set)
        configs.set_targets({"r": AskedTriton(replica.http, frozenset(SLOTS))})
        asking = asyncio.create_task(configs.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                while configs.slots("r") != SLOTS:
                    changed.clear()
                    await changed.wait()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        sent = {"spans-dynamic": 24, "spans-alone": 3, "spans-sequence": 12, "spans-steps": 24}
        for model, requests in sent.items():
            assert await at_once(http, replica, model, requests) == SLOTS[model], model


async def test_the_picker_names_the_slots_of_a_running_fleet(http, stack):
    """The classifier batches 8 requests, a sequence model runs one, an engine tells its own."""

    async def known() -> bool:
        endpoints = (await picker_state(http, stack))["router"]["pools"]["llm"]["endpoints"]
        return all(
            {name: each["slots"] for name, each in found["limits"].items()}
            == {"vision": 8, "counter": 1, "toy-llm": ENGINE}
            and {each["slots_by"] for each in found["limits"].values()} == {"declared"}
            for found in endpoints.values()
        )

    assert await eventually(known)
