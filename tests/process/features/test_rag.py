"""A worker is killed while it applies the terms of a workflow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.processes.features import MANUAL, RagProcesses
from tests.support.processes.gateway import StartGateway
from tests.support.processes.worker import Process, wait_until
from tests.support.servers import RealServer

pytestmark = [pytest.mark.process, pytest.mark.slow("starts a gateway and workers")]


@pytest.fixture
def rag(
    server: RealServer, spawn: Callable[..., Process], start_gateway: StartGateway
) -> RagProcesses:
    def start(**settings: object) -> Process:
        usual = {"redis_url": server.url, "block_ms": 50, "embedder": "off", "lease_ms": 1000}
        return spawn("worker", **usual, **settings)

    return RagProcesses(start_gateway(server.url), start)


def untouched(server: RealServer) -> set[bytes]:
    return set(server.client.keys("rag*"))


@pytest.mark.parametrize("times", [2, 4])
def test_another_worker_continues_after_a_crash(
    rag: RagProcesses, server: RealServer, times: int
) -> None:
    """It dies after the first of two documents is stored, and after the terms are changed."""
    first = rag.start()
    rag.add("manual", MANUAL)
    job_id = rag.reviewed()
    before = untouched(server)
    first.kill()
    dying = rag.start(SLUICE_CRASH_AT=f"after_effect:{times}")
    path = f"/api/workflow/jobs/{job_id}/steps/apply/execute"
    assert rag.ask("POST", path, {"wait_s": 0})[0] == 202
    assert dying.wait(40) == -9
    rag.start()
    wait_until(lambda: rag.status(job_id, "apply") in ("complete", "failed"), 60)
    assert rag.status(job_id, "apply") == "complete"
    assert rag.found("DLQ") == ["Glossary", "Operations", "manual"]
    [about, *_] = rag.items(job_id, "apply")
    assert (about["payload"]["documents"], about["payload"]["documents_known"]) == (2, 0)
    assert rag.undo(job_id, about["payload"]["undo_token"])[0] == 200
    assert untouched(server) == before
