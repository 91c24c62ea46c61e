"""A job in a line: what lists and live pages show of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from common import codec
from common.contracts.jobs import RAW_PAYLOAD, DataField, JobField

#: Longest message of an error.
MOST_MESSAGE: Final = 200
#: What HMGET asks a job's hash for.
FIELDS: Final = (
    *(JobField.TASK, JobField.STATUS, JobField.CREATED_TS, JobField.UPDATED_TS),
    *(JobField.TTL_S, JobField.ERROR),
)
NAMES: Final = tuple(field.value for field in FIELDS)


def summary(job_id: str, values: Sequence[bytes | None]) -> dict[str, Any]:
    """From HMGET of `NAMES`; times as in `GET /v1/jobs/{job_id}`."""
    fields = {
        field.value.encode(): value for field, value in zip(FIELDS, values) if value is not None
    }
    job = codec.Job.from_hash(fields, job_id)
    return {
        JobField.JOB_ID.value: job_id,
        JobField.TASK.value: job.task,
        JobField.STATUS.value: job.status,
        JobField.CREATED_TS.value: job.created_ts,
        JobField.UPDATED_TS.value: job.updated_ts,
        JobField.TTL_S.value: job.ttl_s,
        JobField.ERROR.value: _short_error(job.error),
    }


def _short_error(raw: bytes) -> dict[str, str] | None:
    if not raw:
        return None
    error = codec.payload_object(raw)
    kind, message = (error.get(each.value) for each in (DataField.KIND, DataField.MESSAGE))
    message = message or error.get(RAW_PAYLOAD)  # a foreign worker's, in words of its own
    return {
        DataField.KIND.value: str(kind or "")[:MOST_MESSAGE],
        DataField.MESSAGE.value: str(message or "")[:MOST_MESSAGE],
    }
