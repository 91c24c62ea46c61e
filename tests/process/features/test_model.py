"""A model server behind gateway and worker: streaming, outages, crashes and cancellation."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.test_alerts import NAME, names_used
from tests.support.model.served import Served
from tests.support.processes.jobs import field, status, wait_for
from tests.support.processes.model import ModelProcesses, ScriptedModel, deltas, until_delta
from tests.support.processes.worker import wait_until
from tests.support.servers import RealServer, missing

pytestmark = pytest.mark.process

#: A canceled answer should free its slot within 250 ms; tests share the machine.
FREED_S = 8.0

Start = Callable[..., ModelProcesses]


@pytest.fixture
def start(one_server: RealServer, start_processes: Callable[..., ModelProcesses]) -> Start:
    """The workers find the model by its announcement file in `data`."""
    return lambda data: start_processes(ModelProcesses, one_server.url, sluice_data_dir=str(data))


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedModel]]:
    made: list[ScriptedModel] = []

    def make(port: int = 0) -> ScriptedModel:
        made.append(ScriptedModel(port))
        return made[-1]

    yield make
    for model in made:
        model.kill()


@pytest.mark.slow("waits for an outage of the model server")
def test_an_outage_of_the_model_server(
    start: Start, one_server: RealServer, scripted: Callable[..., ScriptedModel], tmp_path: Path
) -> None:
    client, model = one_server.client, scripted()
    processes = start(tmp_path / "data")
    worker = processes.worker(model_url=f"{model.url}/v1", lease_ms=30_000)
    wait_until(lambda: processes.model_check()["ready"] == 1)
    assert (processes.model_check()["status"], processes.model_check()["slots"]) == ("pass", 2)
    answered = processes.gateway.submit(payload={"text": "count to 3"})
    wait_for(client, answered)
    assert field(client, answered, "result")["text"] == "1 2 3"
    # A cancellation reaches the server.
    canceled = processes.gateway.submit(payload={"text": "count to 5000 slowly"})
    wait_until(lambda: model.requests[-1]["tokens"] > 3)
    processes.request("POST", f"/v1/jobs/{canceled}/cancel")
    wait_until(lambda: model.requests[-1]["hung_up"])
    wait_for(client, canceled, b"canceled")
    # During the outage jobs wait, and the status shows why.
    model.kill()
    waiting = [processes.gateway.submit(payload={"text": "count to 2"}) for _ in range(3)]
    wait_until(lambda: processes.model_check()["status"] == "warn")
    assert "refused" in processes.model_check()["output"]
    assert {status(client, job_id) for job_id in waiting} <= {b"queued", b"running"}
    scripted(model.port)
    wait_for(client, waiting)
    wait_until(lambda: processes.model_check()["status"] == "pass")

    def answers() -> Any:
        [listed] = processes.get("/v1/workers")["workers"]
        return listed["model"]["answers"]

    wait_until(lambda: answers() >= 5)  # as of its next heartbeat
    reported = set(NAME.findall(processes.request("GET", "/metrics").text))
    assert {name for name in names_used() if name.startswith("gw_model_")} <= reported
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "sluice model serve" in worker.log


# -- a real model ------------------------------------------------------------------------------


@pytest.fixture
def real(start: Start, real_model: Served) -> ModelProcesses:
    return start(real_model.data)


@pytest.mark.slow("answers with a real model")
@pytest.mark.xdist_group("model")
def test_a_curl_session_streams_real_tokens(real: ModelProcesses) -> None:
    if shutil.which("curl") is None:
        missing("curl is not installed")
    real.worker("w")
    job_id = real.chat(24)
    output = subprocess.run(
        ["curl", "-sN", f"{real.url}/v1/jobs/{job_id}/events"],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    types = [line[7:] for line in output.splitlines() if line.startswith("event: ")]
    assert types[:3] == ["hello", "queued", "running"]
    assert types[-1] == "done"
    assert types.count("message") >= 3
    job = real.job(job_id)
    with real.watching(job_id) as events:
        assert "".join(deltas(list(events), 1)) == job["result"]["text"]
    result = job["result"]
    assert result["finish_reason"] == "length"
    assert result["usage"]["completion_tokens"] == 24
    assert result["model"] == "smollm2-135m-instruct"
    assert 0 < result["first_token_ms"] <= result["ms"]


@pytest.mark.slow("answers with a real model")
@pytest.mark.xdist_group("model")
def test_a_cancel_during_an_answer_frees_the_slot(real: ModelProcesses, real_model: Served) -> None:
    worker = real.worker("w")
    job_id = real.chat(3000)
    with real.watching(job_id) as stream:
        events = until_delta(stream, 3)
        assert real_model.busy >= 1
        asked = time.monotonic()
        answer = real.request("POST", f"/v1/jobs/{job_id}/cancel", {"reason": "enough"})
        assert answer.status_code == 202, answer.text
        wait_until(lambda: real_model.busy == 0, FREED_S)
        assert time.monotonic() - asked < FREED_S
        events += stream
    assert events[-1]["type"] == "canceled"
    assert events[-1]["data"]["stage"] == "cooperative"
    job = real.job(job_id)
    assert job["status"] == "canceled"
    assert job["result"]["text"] == "".join(deltas(events, 1))
    assert worker.popen.poll() is None
