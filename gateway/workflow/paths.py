"""Which paths belong to the workflow API, and which job a path is about."""

from __future__ import annotations

from typing import Final

from common.contracts.workflow import JOB_ID

ROOT: Final = "/api/workflow"
JOBS: Final = ROOT + "/jobs"
JOB: Final = JOBS + "/{job_id}"
STATUS: Final = JOB + "/status"
RESULTS: Final = JOB + "/results"
EXECUTE: Final = JOB + "/steps/{step_name}/execute"
BULK: Final = JOB + "/proposals/bulk"
ONTOLOGY: Final = JOB + "/proposals/{proposal_id}/ontology"
UNDO: Final = JOB + "/undo"
CANCEL: Final = JOB + "/cancel"
EVENTS: Final = JOB + "/events"
STREAM: Final = EVENTS + "/stream"
DEFINITIONS: Final = ROOT + "/definitions"
DELIVERIES: Final = ROOT + "/webhooks/deliveries"
DEAD_WEBHOOKS: Final = ROOT + "/webhooks/dlq"
REDRIVE_WEBHOOKS: Final = DEAD_WEBHOOKS + "/redrive"
#: Below which all of them lie.
BELOW: Final = ROOT + "/"
_BELOW_JOBS: Final = JOBS + "/"


def is_workflow(path: str) -> bool:
    """Whether a path is one of theirs."""
    return path.startswith(BELOW) or path == ROOT


def job_id_in(path: str) -> str | None:
    """The id of the job that a path is about; None where there is none, or none that can be."""
    if not path.startswith(_BELOW_JOBS):
        return None
    job_id = path[len(_BELOW_JOBS) :].partition("/")[0]
    return job_id if JOB_ID.match(job_id) else None


def place_of(job_id: str) -> str:
    """Where a job's status is read."""
    return STATUS.replace("{job_id}", job_id)
