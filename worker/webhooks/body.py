"""What a webhook is told: a pure function of an outbox entry, so the same bytes at each try."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

from common import codec
from common.contracts.webhooks import CallbackField
from common.contracts.workflow import OutboxField

_DIGITS: Final = 8


class Callback(NamedTuple):
    """One event, ready to be sent."""

    event_id: str
    event_type: str
    body: bytes


def callback_of(job_id: str, workflow: str, entry: bytes) -> Callback:
    """The body that an entry of a job's outbox stands for; raises ValueError for what is none."""
    stored = codec.loads(entry)
    if not isinstance(stored, Mapping):
        raise ValueError("no object")
    try:
        seq = int(stored[OutboxField.SEQ.value])
        kind = str(stored[OutboxField.TYPE.value])
        said = {
            CallbackField.EVENT_ID: event_id_of(job_id, kind, seq),
            CallbackField.EVENT_TYPE: kind,
            CallbackField.JOB_ID: job_id,
            CallbackField.WORKFLOW: workflow,
            CallbackField.STATUS: stored[OutboxField.STATUS.value],
            CallbackField.CURRENT_STEP: stored[OutboxField.CURRENT_STEP.value],
            CallbackField.PAYLOAD: _payload(stored[OutboxField.DATA.value]),
            CallbackField.EMITTED_AT: rfc3339(int(stored[OutboxField.TS.value])),
        }
    except (KeyError, TypeError, OverflowError, OSError) as error:
        raise ValueError(f"no entry of an outbox: {error!r}") from error
    body = codec.dumps({field.value: value for field, value in said.items()})
    return Callback(said[CallbackField.EVENT_ID], kind, body)


def event_id_of(job_id: str, kind: str, seq: int) -> str:
    """The event's name, by which receivers know what they have had before."""
    digest = hashlib.sha256(f"{job_id}|{kind}|{seq}".encode()).hexdigest()
    return f"{job_id}:{kind}:{digest[:_DIGITS]}"


def rfc3339(ms: int) -> str:
    """`2026-02-14T15:40:00Z`."""
    return datetime.fromtimestamp(ms // 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _payload(data: Any) -> Any:
    """The event's own words: JSON in a string, as the script could not look into it."""
    return codec.loads(data.encode()) if isinstance(data, str) and data else {}
