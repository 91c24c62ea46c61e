"""Handlers and tools that are imported by whoever first needs them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from pydantic import BaseModel

from worker.errors import InvalidPayload
from worker.late import add_late
from worker.registry import Registry
from worker.tools.tool import Tool, make_tool
from worker.tools.toolbox import ToolBox

CONTEXT: Any = None


class Sum(BaseModel):
    numbers: list[int]


async def add(context: Any, payload: Sum) -> int:
    return sum(payload.numbers)


class Module:
    """Stands for one that is imported late."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.imported_in: list[threading.Thread] = []
        self.missing = False

    def register(self, registry: Registry) -> None:
        assert registry.toolbox is self.registry.toolbox
        self.imported_in.append(threading.current_thread())
        if self.missing:
            raise ImportError("a package of it")
        registry.add("chat", add)


@pytest.fixture
def module() -> Module:
    registry = Registry()
    module = Module(registry)
    add_late(registry, "chat", module.register)
    return module


async def call(registry: Registry, payload: dict[str, Any]) -> Any:
    handler = registry.resolve("chat")
    assert handler.is_async
    return await handler.function(CONTEXT, handler.parse(payload))


async def test_the_first_job_imports_its_handler_and_is_done_by_it(module: Module) -> None:
    assert (module.registry.tasks, module.imported_in) == (["chat"], [])
    assert await call(module.registry, {"numbers": [1, 2]}) == 3
    assert await call(module.registry, {"numbers": [3]}) == 3
    [thread] = module.imported_in
    assert thread is not threading.main_thread()  # the loop did not stand still for it


async def test_jobs_that_come_meanwhile_are_done_too(module: Module) -> None:
    jobs = [asyncio.create_task(call(module.registry, {"numbers": [n]})) for n in range(300)]
    await asyncio.sleep(0)
    jobs.pop(0).cancel()
    assert await asyncio.gather(*jobs) == [*range(1, 300)]
    assert len(module.imported_in) == 1


async def test_an_import_that_failed_is_tried_again_by_the_next_job(module: Module) -> None:
    module.missing = True
    with pytest.raises(ImportError, match="a package of it"):
        await call(module.registry, {"numbers": [1]})
    module.missing = False
    assert await call(module.registry, {"numbers": [1]}) == 1


async def test_a_handler_of_the_users_own_that_asks_the_shipped_one_stays(module: Module) -> None:
    shipped: Any = module.registry.resolve("chat").function

    async def twice(context: Any, payload: dict[str, Any]) -> int:
        return 2 * int(await shipped(context, payload))

    module.registry.add("chat", twice, max_attempts=7)
    for _ in range(2):
        assert await call(module.registry, {"numbers": [4]}) == 8
    assert module.registry.own_attempts == {"chat": 7}


async def test_a_bad_payload_is_the_same_fault_for_the_first_job(module: Module) -> None:
    faults = []
    for _ in range(2):
        with pytest.raises(InvalidPayload, match="numbers") as caught:
            await call(module.registry, {"numbers": "none"})
        faults.append(str(caught.value))
    assert faults[0] == faults[1]


async def test_a_handler_of_the_users_own_stays(module: Module) -> None:
    async def own(context: Any, payload: Any) -> str:
        return "own"

    module.registry.add("chat", own)
    assert await call(module.registry, {}) == "own"
    assert module.imported_in == []


def tool(name: str, made: list[str]) -> Tool:
    made.append(name)
    return make_tool(
        lambda call, arguments: None, name=name, description="Does nothing.",
        parameters={"type": "object"},
    )  # fmt: skip


def test_a_late_tool_is_known_at_once_and_made_when_it_is_called() -> None:
    made: list[str] = []
    box = ToolBox("later")
    box.put_late("later", lambda: tool("later", made))
    box.check()
    assert (box.names(), made) == (["later"], [])
    assert box.find("later") is box.find("later")
    assert (box.names(), made) == (["later"], ["later"])


def test_late_tools_obey_the_same_rules() -> None:
    made: list[str] = []
    box = ToolBox()
    box.put_late("a.b", lambda: tool("a.b", made))
    with pytest.raises(ValueError, match="the same to a model"):
        box.put(tool("a__b", made))
    with pytest.raises(ValueError, match="Sluice's own"):
        box.put_late("workflow.step", lambda: tool("workflow.step", made))
    own = tool("a.b", made)
    box.put(own)
    assert box.find("a.b") is own
    assert made == ["a__b", "a.b"]
