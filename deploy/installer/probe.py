"""A job sent through everything, to see that it ends."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.contracts.jobs import EventField, EventType, JobField, JobKeys, QueueField, Status, Step
from common.contracts.jobs import Task as JobTask
from deploy.installer.errors import InstallError
from deploy.installer.resp import Resp

#: How long one try may take.
TRY_S = 10
TTL_S = 300
_TASK = JobTask.TOOL.value
_PAYLOAD = '{"text":"probe of deploy/install.sh"}'
#: Somebody took the job and said that he cannot do it, which is all that we ask: not everybody is
#: the echo worker.
_TAKEN = ("unknown_task", "invalid_payload")


class ProbeFailed(InstallError):
    """The job did not come through."""


@dataclass(frozen=True)
class Gateway:
    """Where it answers on this box."""

    listen: str

    def _connect(self) -> http.client.HTTPConnection:
        address, _, port = self.listen.rpartition(":")
        address = address.strip("[]")
        near = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}.get(address, address)
        return http.client.HTTPConnection(near, int(port), timeout=TRY_S + 2)

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> tuple[int, Any]:
        """Status and JSON of one request; raises ProbeFailed where nobody answers."""
        connection = self._connect()
        try:
            connection.request(method, path, body or None, headers)
            answer = connection.getresponse()
            raw = answer.read()
            return answer.status, json.loads(raw) if raw else {}
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ProbeFailed(f"the gateway at {self.listen} does not answer: {error}") from error
        finally:
            connection.close()

    def ready(self) -> None:
        """Whether it and its Redis are ready; raises ProbeFailed."""
        status, _ = self.ask("GET", "/readyz")
        if status != 200:
            raise ProbeFailed(f"/readyz at {self.listen} answers {status}")

    def run_job(self) -> Any:
        """A job over HTTP; what became of it, or None where an API key is demanded."""
        body = f'{{"task":"{_TASK}","payload":{_PAYLOAD},"ttl_s":{TTL_S}}}'
        headers = {"Content-Type": "application/json", "Prefer": f"wait={TRY_S}"}
        status, answer = self.ask("POST", "/v1/jobs", body, **headers)
        if status in (401, 403):
            return None
        if status != 200:
            raise ProbeFailed(
                f"a job sent to {self.listen} got {status} {answer.get('detail', '')}"
            )
        return answer


def run_job(gateway: Gateway, admin: Resp, keys: JobKeys) -> None:
    """See one job end; raises ProbeFailed."""
    answer = gateway.run_job()
    if answer is None:
        answer = _run_in_redis(admin, keys)
    status, error = answer.get(JobField.STATUS), answer.get(JobField.ERROR) or {}
    if status != Status.DONE.value and error.get("kind") not in _TAKEN:
        raise ProbeFailed(f"a probe job ended as {status}: {error}")


def _run_in_redis(admin: Resp, keys: JobKeys) -> dict[str, Any]:
    """The same as a foreign producer, by the contract alone: where HTTP needs an API key."""
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
    admin.say("HSET", job, *_pairs(record))
    admin.say("EXPIRE", job, TTL_S)
    admin.say("XADD", events, "*", *_pairs(event))
    admin.say("EXPIRE", events, TTL_S)
    admin.say("XADD", keys.queue, "*", *_pairs(message))
    deadline = time.monotonic() + TRY_S
    while time.monotonic() < deadline:
        found = admin.say("HMGET", job, JobField.STATUS, JobField.ERROR)
        assert isinstance(found, list)
        if found[0] not in (Status.QUEUED.value, Status.RUNNING.value):
            error = json.loads(str(found[1])) if found[1] else {}
            return {JobField.STATUS: found[0], JobField.ERROR: error}
        time.sleep(0.1)
    raise ProbeFailed(f"a probe job was not ended within {TRY_S} s")


def _pairs(fields: Mapping[str, str]) -> list[str]:
    return [word for name, value in fields.items() for word in (name, value)]
