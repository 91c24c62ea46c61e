"""Registration of workflows, modules that provide them, error entries and ids of core jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.errors import SettingsError
from sluice.common.redis.partitions import HOME_PARTITION, Partitions
from sluice.worker.execution.context import JobContext
from sluice.worker.features.workflows.arguments import CoreJobIds
from sluice.worker.features.workflows.context import StepContext
from sluice.worker.features.workflows.errors import StepError, step_error_entry
from sluice.worker.features.workflows.output import StepItem, StepOutput, step_result
from sluice.worker.features.workflows.registry import Workflows
from sluice.worker.features.workflows.split_steps import SplitStep
from sluice.worker.registry import Registry
from tests.support.worker.workflows import definition, nothing

FLOW = definition("gather", "suggest", "review", "last")
STEPS: dict[str, Any] = {"gather": nothing, "suggest": nothing, "last": nothing}


async def other(context: StepContext) -> StepOutput:
    return StepOutput("other")


def test_each_step_of_work_needs_a_function() -> None:
    workflows = Workflows()
    workflows.add(FLOW, {**STEPS, "gather": SplitStep()})
    assert [each.definition for each in workflows] == [FLOW]
    assert len(workflows) == 1
    assert workflows.get("flow_v2") is None
    # Some functions of a workflow may be replaced.
    workflows = Workflows()
    workflows.add(FLOW, STEPS)
    workflows.add(FLOW, {"last": other})
    found = workflows.get(FLOW.name)
    assert found is not None
    assert (found.steps["last"], found.steps["gather"]) == (other, nothing)
    with pytest.raises(ValueError, match="give yours another name"):
        workflows.add(definition("gather"), {"gather": nothing})


@pytest.mark.parametrize(
    ("steps", "words"),
    [({"gather": nothing}, "no function for last, suggest"),
     ({**STEPS, "review": nothing}, "review .* is a review"),
     ({**STEPS, "melt": nothing}, "there is no step melt"),
     ({**STEPS, "last": lambda context: None}, "async def"),
     ({**STEPS, "last": None}, "async def")],
)  # fmt: skip
def test_incomplete_workflows_are_refused(steps: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        Workflows().add(FLOW, steps)


def module(tmp_path: Path, monkeypatch: Any, source: str) -> str:
    (tmp_path / "own_flows.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "own_flows", raising=False)
    return "own_flows"


_MODULE = """
from tests.worker.features.workflows.test_registry import FLOW, STEPS

def register_workflows(workflows):
    workflows.add(FLOW, STEPS)
"""


def test_a_module_provides_workflows_and_handlers(tmp_path: Path, monkeypatch: Any) -> None:
    more = "\nfrom sluice.worker.handlers.echo import register\n"
    for source, tasks in ((_MODULE, []), (_MODULE + more, ["chat"])):
        registry = Registry()
        registry.load(module(tmp_path, monkeypatch, source))
        assert registry.workflows.get("flow_v1") is not None
        assert len(registry.workflows) == 1
        assert set(tasks) <= set(registry.tasks)
    with pytest.raises(SettingsError, match="register_workflows"):
        Registry().load(module(tmp_path, monkeypatch, "x = 1\n"))


async def test_an_internal_tool_is_found_before_the_task() -> None:
    registry = Registry()

    async def chat(context: JobContext, payload: dict[str, Any]) -> str:
        return "chat"

    async def own(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
        return args

    registry.add("chat", chat)
    registry.add_internal("workflow.step", own)
    payload = {"tool": "workflow.step", "args": {"a": 1}}
    assert registry.handler_for("chat", payload).function is chat
    for other in ({"tool": "workflow.steps"}, {"tool": []}, {}):
        with pytest.raises(Exception, match="no handler"):
            registry.handler_for("tool", other)
    registry.add("tool", chat)  # a user's handler does not get the internal jobs
    assert registry.handler_for("tool", {"tool": "workflow.steps"}).function is chat
    found = registry.handler_for("tool", payload)
    assert await found.function(None, payload) == {"a": 1}
    assert await found.function(None, {"args": 3}) == {}


def test_errors_of_core_jobs_as_workflow_errors() -> None:
    for error, found in (
        ({"kind": "no_photos", "message": "none"}, ("no_photos", "none")),
        ({"kind": "timeout", "message": "late"}, ("step_failed", "late", "timeout")),
        ({"kind": "ValueError", "message": "x" * 3000}, ("step_failed", "x" * 2000, "ValueError")),
        ({}, ("step_failed", "the step failed")),
    ):
        assert step_error_entry(error) == dict(zip(("code", "message", "kind"), found))
    assert StepError("no_photos", "none").code == "no_photos"
    for code in ("", "No", "a b", "x" * 65):
        with pytest.raises(ValueError, match="is not a valid code"):
            StepError(code, "words")


def test_the_stored_form_of_an_output() -> None:
    output = StepOutput(
        "s" * 2000,
        [StepItem({"a": "ä"}, "proposed", 0.25)],
        [{"code": "x", "message": "y"}],
        [("p_001", "applied", 3)],
        "undo_01234567",
    )
    result = step_result(output)
    assert len(result.summary) == 1000
    assert result.items[0] == ('{"a":"ä"}'.encode(), "proposed", 0.25)
    assert result.errors == b'[{"code":"x","message":"y"}]'
    assert (result.changed, result.undo_token) == ((("p_001", "applied", 3),), "undo_01234567")
    assert step_result(StepOutput("\ud800")).summary == "?"
    with pytest.raises(StepError, match="put"):
        step_result(StepOutput("", [StepItem({"a": "x" * 60_000})] * 300))
    with pytest.raises(StepError, match="errors"):
        step_result(StepOutput("", errors=[{"code": "x" * 70_000}]))


TENANTS = "0d7cbb1e-1111-4222-8333-444455556666"


@pytest.mark.parametrize("count", [1, 2, 16])
def test_ids_are_in_the_partition_and_keep_the_tail(count: int) -> None:
    partitions = Partitions.create(JobKeys(), count)
    ids = CoreJobIds(partitions)
    drawn = [ids.core_job(TENANTS), ids.for_step(TENANTS).core_job]
    drawn.append(ids.for_tail("444455556666").core_job)
    assert len(set(drawn)) == 3
    for job_id in drawn:
        assert partitions.number(job_id) == HOME_PARTITION
        assert job_id.endswith("444455556666")
    for job_id in (ids.core_job("not a uuid"), ids.for_tail("").core_job):
        assert partitions.number(job_id) == HOME_PARTITION
        assert not job_id.endswith("444455556666")
