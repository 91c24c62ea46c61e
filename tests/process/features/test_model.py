"""A model server behind gateway and worker: streaming, outages, crashes and cancellation."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.test_alerts import NAME, names_used
from tests.support.model.served import Served, require_model
from tests.support.processes.jobs import field, status, wait_for
from tests.support.processes.model import ModelProcesses, ScriptedModel, deltas, until_delta
from tests.support.processes.worker import wait_until
from tests.support.servers import RealServer, missing

pytestmark = pytest.mark.process

#: A canceled answer should free its slot within 250 ms; tests share the machine.
FREED_S = 8.0
#: Likewise for the stop of a model server.
QUICK_S = 8.0

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
def test_a_worker_is_killed_during_an_answer(real: ModelProcesses) -> None:
    """The next attempt answers from the beginning on the same stream, and its events can be
    distinguished.
    """
    first = real.worker("first")
    job_id = real.chat(80)
    with real.watching(job_id) as stream:
        events = until_delta(stream, 4)
        first.popen.send_signal(signal.SIGKILL)
        last_id = events[-1]["id"]
        real.worker("second")
        events += stream
    assert [event["data"]["attempt"] for event in events if event["type"] == "running"] == [1, 2]
    second = next(at for at, event in enumerate(events) if event["data"].get("attempt") == 2)
    assert all(event["data"].get("attempt", 2) == 2 for event in events[second:])
    assert events[-1]["type"] == "done"
    job = real.job(job_id)
    assert "".join(deltas(events, 2)) == job["result"]["text"]
    assert len(deltas(events, 1)) >= 4
    with real.watching(job_id, after=last_id) as stream:
        resumed = [event["id"] for event in stream]
    assert resumed == [event["id"] for event in events if _after(event["id"], last_id)]


def _after(this: str, other: str) -> bool:
    return [int(part) for part in this.split("-")] > [int(part) for part in other.split("-")]


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


@pytest.mark.slow("answers with a real model")
@pytest.mark.xdist_group("model")
def test_jobs_wait_for_a_killed_model_server(start: Start, tmp_path: Path) -> None:
    """Jobs wait, the status shows why, and they end when a server is back, at any address."""
    require_model()
    data = tmp_path / "data"
    served = Served(tmp_path / "one", data=data).ready()
    again = None
    try:
        processes = start(data)
        processes.worker()
        assert processes.ended(processes.chat(4))["status"] == "done"
        served.end(signal.SIGKILL)
        job_id = processes.chat(8)
        wait_until(lambda: processes.model_check()["status"] != "pass", 60)
        check = processes.model_check()
        assert served.announcement["url"].partition("//")[2] in check["output"], check
        assert processes.job(job_id)["status"] == "queued"
        again = Served(tmp_path / "two", data=data).ready()
        assert again.announcement["pid"] != served.process.pid
        assert processes.ended(job_id)["status"] == "done"
        wait_until(lambda: processes.model_check()["status"] == "pass", 30)
        with processes.watching(job_id) as events:
            assert all(event["type"] != "error" for event in events)
        with processes.watching(processes.chat(3000)) as events:
            until_delta(events, 2)
            assert again.end() < QUICK_S, "it does not finish what it is saying"
        assert again.process.returncode == 0, again.output
        assert os.listdir(data) == ["images"], "only the worker's directory of images is left"
    finally:
        for each in (served, again):
            if each is not None:
                each.close()
