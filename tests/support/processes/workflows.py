"""Real gateways and workers for workflows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from tests.support.processes.base import Processes, Spawn
from tests.support.processes.worker import wait_until

#: Steps that record when they run and wait for a file before they end.
FLOW = """
import asyncio
from pathlib import Path

from common.contracts.workflow.statuses import StepKind
from common.features.workflows.definitions import StepDefinition, WorkflowDefinition
from worker.features.workflows.output import StepItem, StepOutput

HERE = Path(__file__).parent

def note(words):
    with (HERE / "notes").open("a") as notes:
        notes.write(words + "\\n")

async def opened(gate):
    while not (HERE / gate).exists():
        await asyncio.sleep(0.01)

async def slow(context):
    await context.progress(1, 2)
    note(f"slow {context.attempt}")
    await opened("gate")
    await context.progress(2, 2)
    return StepOutput("slow", [StepItem({"attempt": context.attempt})])

async def suggest(context):
    return StepOutput("two", [StepItem({"to": str(n)}, "proposed", 0.5) for n in (1, 2)])

async def last(context):
    found = [item.status.value for item in await context.items("suggest")]
    return StepOutput(" ".join(found))

def flow(name, **steps):
    names = list(steps)
    declared = []
    for at, step in enumerate(names):
        kind = {"kind": StepKind.REVIEW, "reviews": names[at - 1]} if step == "review" else {}
        weight = 1 - (len(names) - 1) * 0.1 if at == 0 else 0.1
        kind |= {"proposes": True} if step == "suggest" else {}
        declared.append(StepDefinition(step, step[:3], step, weight, **kind))
    work = {step: function for step, function in steps.items() if function}
    return WorkflowDefinition(name, tuple(declared)), work

def register_workflows(workflows):
    workflows.add(*flow("slow_v1", slow=slow, suggest=suggest, review=None, last=last))
"""


class WorkflowProcesses(Processes):
    """A gateway and any number of workers with the workflows above."""

    WORKER: ClassVar[dict[str, object]] = {
        "worker_handlers": "crash_flow", "workflow_reconcile_s": 0.3, "log_level": "debug",
    }  # fmt: skip

    def __init__(self, redis_url: str, spawn: Spawn, directory: Path, **settings: str) -> None:
        super().__init__(redis_url, spawn, directory, **settings)
        (directory / "crash_flow.py").write_text(FLOW)

    # -- over HTTP -------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = self.request(method, f"/api/workflow/jobs{path}", body)
        return answer.status_code, answer.json()

    def create(self, workflow: str, **more: Any) -> str:
        """Creates a job that advances automatically, once the gateway knows its workflow."""
        body = {"workflow": workflow, "auto_advance": True, **more}

        def made() -> str | None:
            status, answer = self.ask("POST", "", body)
            assert status in (200, 422, 503), answer
            return str(answer["job"]["job_id"]) if status == 200 else None

        return str(wait_until(made))

    def status(self, job_id: str) -> dict[str, Any]:
        status, answer = self.ask("GET", f"/{job_id}/status")
        assert status == 200, answer
        job: dict[str, Any] = answer["job"]
        return job

    def wait_for_status(self, job_id: str, *statuses: str) -> dict[str, Any]:
        wait_until(lambda: self.status(job_id)["status"] in statuses)
        return self.status(job_id)

    def items(self, job_id: str, step: str) -> list[dict[str, Any]]:
        status, answer = self.ask("GET", f"/{job_id}/results?step={step}&limit=500")
        assert status == 200, answer
        found: list[dict[str, Any]] = answer["result"]["items"]
        return found

    def event_log(self, job_id: str) -> list[str]:
        """Its events except progress, each as `type step`; their numbers must have no gap."""
        status, answer = self.ask("GET", f"/{job_id}/events?limit=500")
        assert status == 200, answer
        events = answer["events"]
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        return [
            f"{event['type']} {event['step'] or ''}".strip()
            for event in events
            if event["type"] != "step.progress"
        ]

    # -- output of the steps -------------------------------------------------------------------

    @property
    def notes(self) -> list[str]:
        path = self.directory / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_note(self, words: str) -> None:
        wait_until(lambda: words in self.notes)

    def open_gate(self) -> None:
        """Lets the steps end."""
        (self.directory / "gate").touch()
