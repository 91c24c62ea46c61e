"""The progress of a job, in percent."""

from __future__ import annotations

from typing import Any

from tests.worker.kit import RigMaker
from worker.execution.context import JobContext
from worker.execution.executor import Outcome


async def test_progress_is_an_event(fake_rig: RigMaker) -> None:
    async def handler(context: JobContext, payload: Any) -> dict[str, Any]:
        await context.progress(40, "so far")
        await context.progress(20)
        await context.progress(100)
        return {"children": await context.children()}

    rig = fake_rig(handler)
    outcome, job_id = await rig.execute()
    assert outcome is Outcome.DONE
    told = [data for type, _, data in await rig.parsed_events(job_id) if type == "progress"]
    assert told == [{"percent": 40, "message": "so far"}, {"percent": 40}, {"percent": 100}]


async def test_sync_handlers_can_emit_progress(fake_rig: RigMaker) -> None:
    def handler(context: Any, payload: Any) -> dict[str, Any]:
        context.progress(5)
        return dict(context.children())

    rig = fake_rig(handler)
    outcome, job_id = await rig.execute()
    assert outcome is Outcome.DONE
    assert ("progress", {"percent": 5}) in [(t, d) for t, _, d in await rig.parsed_events(job_id)]


async def test_percents_out_of_bounds_fail_the_job(fake_rig: RigMaker) -> None:
    async def handler(context: JobContext, payload: Any) -> None:
        await context.progress(101)

    rig = fake_rig(handler)
    outcome, job_id = await rig.execute()
    assert outcome is Outcome.ERROR
    assert "0 to 100" in (await rig.error(job_id))["message"]
