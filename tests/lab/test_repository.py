"""What the repository of a real Triton says of its models reaches the picker."""

from __future__ import annotations

from support.shown_health import placed
from support.traffic import eventually, picker_state


async def test_the_repository_of_a_real_triton(http, lend_once):
    """An unloaded model is shown with Triton's reason; the pool of the other model is unharmed."""
    deep = {"health": {"repository": True, "interval": "300ms"}}
    stack = await lend_once(
        models=("vision", "toy-llm"), fleet={"pools": {"vision": deep, "llm": deep}}
    )
    one = stack.replicas[0]
    model = f"http://{one.http}/v2/repository/models/vision"

    async def endpoint(pool: str) -> dict:
        state = await picker_state(http, stack)
        return state["router"]["pools"][pool]["endpoints"][one.name]

    async def out() -> bool:
        row = await placed(http, stack, one.name, "vision")
        return (row.get("state"), row.get("reason")) == ("UNAVAILABLE", "unloaded")

    async def back() -> bool:
        return (await endpoint("vision"))["conditions"] == []

    try:
        async with http.post(f"{model}/unload") as answer:
            assert answer.status == 200
        assert await eventually(out)
        assert (await endpoint("llm"))["conditions"] == []
    finally:
        async with http.post(f"{model}/load") as answer:
            assert answer.status == 200
    assert await eventually(back)
