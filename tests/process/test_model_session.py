"""A real model behind gateway and worker: streaming, crashes and cancellation."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.model_rig import Rig, deltas, until_delta
from tests.process.served import Served, require_model
from tests.support.backends import missing
from tests.worker.processes import Process, wait_until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("model")]

#: A canceled answer should free its slot within 250 ms; tests share the machine.
FREED_S = 8.0
#: Likewise for the stop of a model server.
QUICK_S = 8.0


@pytest.fixture
def rig(real_model: Served, tmp_path: Path, spawn: Callable[..., Process]) -> Iterator[Rig]:
    rig = Rig(tmp_path, spawn, real_model.data)
    yield rig
    rig.close()


def test_a_curl_session_streams_real_tokens(rig: Rig) -> None:
    if shutil.which("curl") is None:
        missing("curl is not installed")
    rig.worker("w")
    job_id = rig.chat(24)
    output = subprocess.run(
        ["curl", "-sN", f"{rig.url}/v1/jobs/{job_id}/events"],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    types = [line[7:] for line in output.splitlines() if line.startswith("event: ")]
    assert types[:3] == ["hello", "queued", "running"]
    assert types[-1] == "done"
    assert types.count("message") >= 3
    job = rig.job(job_id)
    with rig.watching(job_id) as events:
        assert "".join(deltas(list(events), 1)) == job["result"]["text"]
    result = job["result"]
    assert result["finish_reason"] == "length"
    assert result["usage"]["completion_tokens"] == 24
    assert result["model"] == "smollm2-135m-instruct"
    assert 0 < result["first_token_ms"] <= result["ms"]


def test_a_worker_is_killed_during_an_answer(rig: Rig) -> None:
    """The next attempt answers from the beginning on the same stream, and its events can be
    distinguished.
    """
    first = rig.worker("first")
    job_id = rig.chat(80)
    with rig.watching(job_id) as stream:
        events = until_delta(stream, 4)
        first.popen.send_signal(signal.SIGKILL)
        last_id = events[-1]["id"]
        rig.worker("second")
        events += stream
    assert [event["data"]["attempt"] for event in events if event["type"] == "running"] == [1, 2]
    second = next(at for at, event in enumerate(events) if event["data"].get("attempt") == 2)
    assert all(event["data"].get("attempt", 2) == 2 for event in events[second:])
    assert events[-1]["type"] == "done"
    job = rig.job(job_id)
    assert "".join(deltas(events, 2)) == job["result"]["text"]
    assert len(deltas(events, 1)) >= 4
    with rig.watching(job_id, after=last_id) as stream:
        resumed = [event["id"] for event in stream]
    assert resumed == [event["id"] for event in events if _after(event["id"], last_id)]


def _after(this: str, other: str) -> bool:
    return [int(part) for part in this.split("-")] > [int(part) for part in other.split("-")]


def test_a_cancel_during_an_answer_frees_the_slot(rig: Rig, real_model: Served) -> None:
    worker = rig.worker("w")
    job_id = rig.chat(3000)
    with rig.watching(job_id) as stream:
        events = until_delta(stream, 3)
        assert real_model.busy >= 1
        asked = time.monotonic()
        status, body = rig.ask(f"/v1/jobs/{job_id}/cancel", {"reason": "enough"})
        assert status == 202, body
        wait_until(lambda: real_model.busy == 0, FREED_S)
        assert time.monotonic() - asked < FREED_S
        events += stream
    assert events[-1]["type"] == "canceled"
    assert events[-1]["data"]["stage"] == "cooperative"
    job = rig.job(job_id)
    assert job["status"] == "canceled"
    assert job["result"]["text"] == "".join(deltas(events, 1))
    assert worker.popen.poll() is None


def test_jobs_wait_for_a_killed_model_server(tmp_path: Path, spawn: Callable[..., Process]) -> None:
    """Jobs wait, the status shows why, and they end when a server is back, at any address."""
    require_model()
    data = tmp_path / "data"
    served = Served(tmp_path / "one", data=data).ready()
    rig = Rig(tmp_path, spawn, data)
    again = None
    try:
        rig.worker("w")
        assert rig.ended(rig.chat(4))["status"] == "done"
        served.end(signal.SIGKILL)
        job_id = rig.chat(8)
        check = wait_until(lambda: _model_problem(rig), 60)
        assert served.announcement["url"].partition("//")[2] in check["output"], check
        assert rig.job(job_id)["status"] == "queued"
        again = Served(tmp_path / "two", data=data).ready()
        assert again.announcement["pid"] != served.process.pid
        assert rig.ended(job_id)["status"] == "done"
        wait_until(lambda: rig.model_check()["status"] == "pass", 30)
        with rig.watching(job_id) as events:
            assert all(event["type"] != "error" for event in events)
        with rig.watching(rig.chat(3000)) as events:
            until_delta(events, 2)
            assert again.end() < QUICK_S, "it does not finish what it is saying"
        assert again.process.returncode == 0, again.output
        assert os.listdir(data) == ["images"], "only the worker's directory of images is left"
    finally:
        rig.close()
        for each in (served, again):
            if each is not None:
                each.close()


def _model_problem(rig: Rig) -> dict[str, str] | None:
    check = rig.model_check()
    return check if check["status"] != "pass" else None
