"""The member `text`, which every task accepts as its prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from sluice.common.jobs.options import JobOptions
from sluice.worker.errors import InvalidPayload
from sluice.worker.features.tools import builtin
from sluice.worker.handlers import tool
from sluice.worker.handlers.chat_payload import ChatPayload
from sluice.worker.handlers.code import CodePayload
from sluice.worker.handlers.embed import EmbedPayload
from sluice.worker.handlers.plan import PlanPayload
from sluice.worker.handlers.rag import RagPayload
from sluice.worker.handlers.tool import ToolPayload
from sluice.worker.registry import Handler, Registry
from tests.support.worker.harness import MakeWorker
from tests.support.worker.model_tasks import ScriptedModel, ScriptedWorker, calls

#: Model of each payload, and the task's own name of the prompt.
PAYLOADS: dict[type[BaseModel], str] = {
    PlanPayload: "goal",
    CodePayload: "prompt",
    EmbedPayload: "input",
    RagPayload: "query",
}


def parse(model: type[BaseModel], payload: dict[str, Any]) -> Any:
    async def run() -> None: ...

    return Handler(run, model=model, is_async=True).parse(payload)


@pytest.mark.parametrize("model", [*PAYLOADS, ChatPayload, ToolPayload])
def test_text_alone_is_a_payload(model: type[BaseModel]) -> None:
    assert "hello" in str(parse(model, {"text": "hello"}))


@pytest.mark.parametrize(("model", "own"), PAYLOADS.items())
def test_both_names_of_the_prompt_mean_the_same(model: type[BaseModel], own: str) -> None:
    expected = parse(model, {own: "hello"})
    for payload in (
        {"text": "hello"},
        {"text": "hello", own: "hello"},
        {"text": None, own: "hello"},
        {"text": "hello", own: None},
    ):
        assert parse(model, payload) == expected


@pytest.mark.parametrize(("model", "own"), PAYLOADS.items())
def test_two_different_prompts_are_refused(model: type[BaseModel], own: str) -> None:
    with pytest.raises(InvalidPayload, match=f"{own} and text are two names of the prompt"):
        parse(model, {"text": "hello", own: "other"})
    with pytest.raises(InvalidPayload, match=f"{own}: Field required"):
        parse(model, {"text": None})
    with pytest.raises(InvalidPayload, match="text: "):
        parse(model, {"text": 5})


def test_a_list_with_the_same_text_is_the_same_input() -> None:
    assert parse(EmbedPayload, {"text": "a", "input": ["a"]}).input == ["a"]


def test_text_names_no_document() -> None:
    for payload in ({"op": "ingest", "text": "a"}, {"op": "delete", "text": "a"}):
        with pytest.raises(InvalidPayload, match="text: Extra inputs"):
            parse(RagPayload, payload)


def test_a_tool_job_has_a_tool_or_a_text() -> None:
    for payload in ({}, {"text": "a", "tool": "now"}):
        with pytest.raises(InvalidPayload, match="give either tool, or text"):
            parse(ToolPayload, payload)
    for more in ({"args": {"a": 1}}, {"dry_run": True}):
        with pytest.raises(InvalidPayload, match="args and dry_run need tool"):
            parse(ToolPayload, {"text": "a", **more})


@pytest.mark.fakeredis_only
async def test_a_model_chooses_the_tools_for_a_text(make_worker: MakeWorker) -> None:
    model = ScriptedModel(calls(("calculator", {"expression": "6 * 7"})), "It is 42.")
    registry = Registry()
    builtin.register_tools(registry.toolbox)
    tool.add_handler(registry, model)
    worker = ScriptedWorker(make_worker(registry=registry), model, "tool")
    result, events = await worker.run(text="What is 6 * 7?")
    assert (result["text"], result["rounds"]) == ("It is 42.", 2)
    [step] = result["steps"]
    assert (step["name"], step["output"]) == ("calculator", {"value": 42})
    kinds = [kind for kind, at, _ in events if at == "worker.tool"]
    assert list(dict.fromkeys(kinds)) == ["tool_call", "tool_result", "message", "usage"]
    assert model.requests[0].messages == [{"role": "user", "content": "What is 6 * 7?"}]
    offered = [each["function"]["name"] for each in model.requests[0].tools or ()]
    assert offered == registry.toolbox.names()


@pytest.mark.fakeredis_only
async def test_a_text_gets_only_the_tools_of_its_key(make_worker: MakeWorker) -> None:
    model, registry = ScriptedModel("Now."), Registry()
    builtin.register_tools(registry.toolbox)
    tool.add_handler(registry, model)
    worker = make_worker(registry=registry)
    options = JobOptions(tools=("now",)).to_json()
    await worker.run_job(
        task="tool", payload=json.dumps({"text": "When?"}).encode(), options=options
    )
    assert [each["function"]["name"] for each in model.requests[0].tools or ()] == ["now"]


@pytest.mark.fakeredis_only
async def test_a_text_for_tools_needs_a_model(make_worker: MakeWorker) -> None:
    registry = Registry()
    tool.add_handler(registry)
    worker = ScriptedWorker(make_worker(registry=registry), ScriptedModel(), "tool")
    error = await worker.fail(text="What is 6 * 7?")
    assert error["kind"] == "no_model"
