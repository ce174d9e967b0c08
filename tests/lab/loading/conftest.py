"""Models to load and unload, and a stack with a pool of them."""

from __future__ import annotations

import shutil

import pytest

from support.loads import NAMES, SLOW, SLOWER, having, with_loads
from support.placed_models import CONFIG, PlacedModels
from support.traffic import eventually


@pytest.fixture(scope="module")
async def models(http, tritons):
    """Return the models: one does not load on r3, one is another there."""
    async with PlacedModels(http, tritons, NAMES) as placed:
        r3 = tritons.run.path / "repositories" / "r3"
        (r3 / "broken" / "config.pbtxt").write_text(
            CONFIG.replace('"vision"', '"no-such-model"'), "utf-8"
        )
        (r3 / "unlike" / "config.pbtxt").write_text(
            CONFIG.replace("max_batch_size: 8", "max_batch_size: 4"), "utf-8"
        )
        repositories = [tritons.run.path / "repositories" / each.name for each in tritons.replicas]
        for here in repositories:
            shutil.copytree(here / "vision", here / SLOW)
            config = here / SLOW / "config.pbtxt"
            config.write_text(config.read_text("utf-8").replace(*SLOWER), "utf-8")
        await placed.change({("served", "r1"): True})
        yield placed
        for here in repositories:
            shutil.rmtree(here / SLOW)


@pytest.fixture(autouse=True)
async def left_clean(http, tritons, models):  # noqa: ARG001 - unloads before they end
    """Unload what a test left loaded, a failed one too, so that the next one finds none of it."""
    yield

    async def unloaded(model) -> bool:
        left = await having(http, tritons, model)
        for at in left:
            url = f"{tritons.replica(at).http_url}/v2/repository/models/{model}/unload"
            async with http.post(url) as answer:
                assert answer.status == 200, await answer.text()
        return not left

    for model in {*NAMES, SLOW} - {"served"}:
        assert await eventually(lambda model=model: unloaded(model))


@pytest.fixture(scope="module")
async def stack(models, new_module_stack):  # noqa: ARG001 - written first
    """Run one stack with the pool."""
    return await new_module_stack(fleet=with_loads)
