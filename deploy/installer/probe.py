"""The probe job: submitted after an installation to check that jobs finish."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deploy.installer.errors import InstallError
from deploy.installer.resp import Resp
from sluice.common.contracts.jobs import (
    EventField,
    EventType,
    JobField,
    JobKeys,
    QueueField,
    Status,
    Step,
)
from sluice.common.contracts.jobs import Task as JobTask

#: Time limit of one probe job.
PROBE_TIMEOUT_S = 10
TTL_S = 300
_TASK = JobTask.TOOL.value
_PAYLOAD = '{"text":"probe of deploy/install.sh"}'
#: Error kinds that prove that a worker took the job: other workers than echo may reject it.
_REJECTED_BY_WORKER = ("unknown_task", "invalid_payload")


class ProbeFailed(InstallError):
    """The probe job failed, or the gateway did not respond."""


@dataclass(frozen=True)
class Gateway:
    """Client of the gateway on this host."""

    listen: str

    def _connect(self) -> http.client.HTTPConnection:
        address, _, port = self.listen.rpartition(":")
        address = address.strip("[]")
        connect_to = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}.get(address, address)
        return http.client.HTTPConnection(connect_to, int(port), timeout=PROBE_TIMEOUT_S + 2)

    def request(self, method: str, path: str, body: str = "", **headers: str) -> tuple[int, Any]:
        """Returns status and JSON body; raises ProbeFailed if the gateway does not respond."""
        connection = self._connect()
        try:
            connection.request(method, path, body or None, headers)
            answer = connection.getresponse()
            raw = answer.read()
            return answer.status, json.loads(raw) if raw else {}
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ProbeFailed(f"no response from the gateway at {self.listen}: {error}") from error
        finally:
            connection.close()

    def ready(self) -> None:
        """Raises ProbeFailed unless the gateway and Redis are ready."""
        status, _ = self.request("GET", "/readyz")
        if status != 200:
            raise ProbeFailed(f"/readyz at {self.listen} returned {status}")

    def run_job(self) -> Any:
        """Submits a job and waits for its end; None if an API key is required."""
        body = f'{{"task":"{_TASK}","payload":{_PAYLOAD},"ttl_s":{TTL_S}}}'
        headers = {"Content-Type": "application/json", "Prefer": f"wait={PROBE_TIMEOUT_S}"}
        status, answer = self.request("POST", "/v1/jobs", body, **headers)
        if status in (401, 403):
            return None
        if status != 200:
            raise ProbeFailed(
                f"the probe job sent to {self.listen} was refused: {status} "
                f"{answer.get('detail', '')}"
            )
        return answer


def run_job(gateway: Gateway, admin: Resp, keys: JobKeys) -> None:
    """Runs one job to its end; raises ProbeFailed."""
    answer = gateway.run_job()
    if answer is None:
        answer = _run_in_redis(admin, keys)
    status, error = answer.get(JobField.STATUS), answer.get(JobField.ERROR) or {}
    if status != Status.DONE.value and error.get("kind") not in _REJECTED_BY_WORKER:
        raise ProbeFailed(f"the probe job ended with status {status}: {error}")


def _run_in_redis(admin: Resp, keys: JobKeys) -> dict[str, Any]:
    """Submits the job like a third-party producer, for a gateway that requires an API key."""
    job_id = str(uuid.uuid4())
    now = str(round(time.time() * 1000))
    record = {
        JobField.JOB_ID: job_id,
        JobField.TASK: _TASK,
        JobField.PAYLOAD: _PAYLOAD,
        JobField.STATUS: Status.QUEUED.value,
        JobField.CREATED_TS: now,
        JobField.UPDATED_TS: now,
        JobField.TTL_S: str(TTL_S),
        JobField.RESULT: "",
        JobField.ERROR: "",
    }
    event = {
        EventField.TYPE: EventType.QUEUED,
        EventField.TS: now,
        EventField.STEP: Step.GATEWAY_ENQUEUE,
        EventField.DATA: "{}",
    }
    message = {QueueField.JOB_ID: job_id, QueueField.TASK: _TASK, QueueField.PAYLOAD: _PAYLOAD}
    job, events = keys.job(job_id), keys.events(job_id)
    admin.execute("HSET", job, *_pairs(record))
    admin.execute("EXPIRE", job, TTL_S)
    admin.execute("XADD", events, "*", *_pairs(event))
    admin.execute("EXPIRE", events, TTL_S)
    admin.execute("XADD", keys.queue, "*", *_pairs(message))
    deadline = time.monotonic() + PROBE_TIMEOUT_S
    while time.monotonic() < deadline:
        found = admin.execute("HMGET", job, JobField.STATUS, JobField.ERROR)
        assert isinstance(found, list)
        if found[0] not in (Status.QUEUED.value, Status.RUNNING.value):
            error = json.loads(str(found[1])) if found[1] else {}
            return {JobField.STATUS: found[0], JobField.ERROR: error}
        time.sleep(0.1)
    raise ProbeFailed(f"the probe job did not end within {PROBE_TIMEOUT_S} s")


def _pairs(fields: Mapping[str, str]) -> list[str]:
    return [word for name, value in fields.items() for word in (name, value)]
