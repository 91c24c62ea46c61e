"""The model in the worker's heartbeat."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from common.contracts.workers import ModelState
from common.jobs.queue_stats import QueueReading
from common.observability.heartbeats import Heartbeat
from common.process.usage import LoopLag
from tests.support.model_server import ModelServer
from tests.worker.features.model.kit import ClientRig, FakeJob, RecordingSink, settings_for
from tests.worker.kit import RigMaker
from tests.worker.processes import ROOT
from worker.features.model.client import ModelClient
from worker.features.model.types import ChatRequest
from worker.monitoring.heartbeat import HeartbeatSender


async def test_a_beat_with_a_model(fake_rig: RigMaker, server: ModelServer, tmp_path: Path) -> None:
    rig = fake_rig()
    services = rig.services
    model = ModelClient(settings_for(server, tmp_path))
    sender = HeartbeatSender(
        rig.consumers, rig.keys, 5.0, LoopLag(), fields=services.heartbeat_fields
    )
    assert sender.build(QueueReading()).model is None
    await model.start(services)
    request = ChatRequest([{"role": "user", "content": "count to 3"}])
    await model.complete(FakeJob().context, request, RecordingSink())
    beat = await sender.run_once()
    assert beat.model is not None
    stored = Heartbeat.from_json(await rig.client.get(rig.keys.worker("c1")), "c1")
    assert stored is not None
    # Everything written is read back unchanged.
    assert stored.to_json() == beat.to_json()
    assert (beat.model.state, beat.model.name) == (ModelState.READY, "scripted-1")
    assert (beat.model.answers, beat.model.completion_tokens) == (1, 3)
    await model.close()


async def test_a_reason_of_any_length_fits(server: ModelServer, client_rig: ClientRig) -> None:
    client_rig.client._monitor._set_state(ModelState.DOWN, "x" * 5000)
    assert len(client_rig.client.reading().reason) == 1000


def test_the_http_client_is_imported_on_demand() -> None:
    script = "import sys, worker.main; sys.exit('httpx2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60).returncode == 0
