"""A machine with the embedded model: install offline, use, kill, upgrade, remove."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.system.listing import Listing, listing
from tests.system.machine import Machine
from tests.system.sluice import (
    URL,
    WHEELHOUSE,
    WORKER,
    assert_failed_permanently,
    curl,
    install,
    installer,
    job,
    post,
    states,
    wait_until,
)
from tests.system.wheelhouse import model_wheels

MODEL, AI = "sluice-model.service", "redis-worker@ai.service"
NAME = "smollm2-135m-instruct"
#: Time limit for a real model on a busy machine.
TIMEOUT_S = 120.0


def chat(host: Machine) -> dict[str, Any]:
    job_id = post(host, text="Tell me a story.", max_tokens=16)
    wait_until(host, job_id, "done", TIMEOUT_S)
    return job(host, job_id)


@pytest.mark.usefixtures("pristine")
class TestModel:
    """The tests run in this order; each starts where the previous one ended."""

    def test_it_replaces_the_echo_worker(self, host: Machine) -> None:
        host.copy_in(model_wheels(), WHEELHOUSE)
        install(host)
        assert states(host, WORKER) == ["active"]
        output = install(host, "--with-model --dry-run").stdout
        assert "install the model" in output
        install(host, "--with-model")
        assert states(host, MODEL, AI, WORKER) == ["active", "active", "inactive"]
        enabled = host.run(f"systemctl is-enabled {MODEL} {AI} {WORKER}", code=None).stdout
        assert enabled.split() == ["enabled", "enabled", "disabled"]
        assert NAME in host.prop(MODEL, "StatusText")

    def test_tokens_stream(self, host: Machine) -> None:
        done = chat(host)
        assert done["result"]["model"] == NAME
        assert done["result"]["usage"]["completion_tokens"] > 1
        output = curl(host, f"-N {URL}/v1/jobs/{done['job_id']}/events")
        events = [json.loads(line[6:]) for line in output.splitlines() if line.startswith("data: ")]
        deltas = [event["data"]["delta"] for event in events if event["type"] == "message"]
        assert len(deltas) > 1
        assert "".join(deltas) == done["result"]["text"]

    def test_embeddings_work_in_the_workers_sandbox(self, host: Machine) -> None:
        job_id = post(host, task="embed", input=["a river", "a stream", "a tax form"])
        wait_until(host, job_id, "done", TIMEOUT_S)
        result = job(host, job_id)["result"]
        assert result["dimensions"] == 384
        river, stream, form = result["vectors"]
        assert _similarity(river, stream) > _similarity(river, form)

    def test_it_listens_on_loopback_only(self, host: Machine) -> None:
        lines = host.run("cat /proc/net/tcp").stdout.splitlines()[1:]
        listening = {line.split()[1] for line in lines}
        assert {each for each in listening if each.endswith(f":{8090:04X}")} == {"0100007F:1F9A"}

    def test_the_doctor_finds_no_problem(self, host: Machine) -> None:
        output = json.loads(host.run("sluice doctor -o json", timeout_s=120).stdout)
        found = {each["check"]: each for each in output["findings"]}
        for name in ("server", "name", "slots", "weights", "embedder"):
            assert found[f"model.{name}"]["status"] == "ok", found[f"model.{name}"]
        assert NAME in host.run("sluice model status").stdout

    def test_it_restarts_after_a_kill_and_jobs_wait(self, host: Machine) -> None:
        pid = host.prop(MODEL, "MainPID")
        host.run(f"systemctl kill --signal=KILL {MODEL}")
        chat(host)
        assert host.prop(MODEL, "MainPID") not in (pid, "0")
        assert int(host.prop(MODEL, "NRestarts")) >= 1

    def test_an_invalid_file_stops_it_permanently(self, host: Machine) -> None:
        settings = host.read("/etc/sluice/model.env")
        host.write("/etc/sluice/model.env", "SERVE_GGUF=/etc/hostname\n")
        host.run(f"systemctl restart {MODEL}", code=1)
        assert_failed_permanently(host, MODEL, "GGUF")
        host.write("/etc/sluice/model.env", settings)
        host.run(f"systemctl restart {MODEL}")
        chat(host)

    def test_a_backup_does_not_contain_the_weights(self, host: Machine) -> None:
        installer(host, "backup /root/model.backup")
        assert int(host.run("stat -c %s /root/model.backup").stdout) < 5_000_000
        assert "etc/model.env" in host.run("tar -tzf /root/model.backup").stdout
        host.run("rm /root/model.backup")

    def test_uninstall_removes_everything(self, host: Machine, pristine: Listing) -> None:
        installer(host, "uninstall --purge --yes")
        assert pristine.changes_until(listing(host)) == []


def _similarity(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other))
