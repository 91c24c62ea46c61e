"""Redis keys of workflows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class WorkflowKeys:
    """Every Redis key of workflows."""

    #: The tag of partition 0 (`JobKeys.tag`).
    tag: str = ""

    def job(self, job_id: str) -> str:
        return f"{self.tag}workflow:job:{job_id}"

    def steps(self, job_id: str) -> str:
        return f"{self.tag}workflow:job:{job_id}:steps"

    def items(self, job_id: str) -> str:
        """HASH, item id to its payload (JSON)."""
        return f"{self.tag}workflow:job:{job_id}:items"

    def states(self, job_id: str) -> str:
        """HASH, item id to `status version edited confidence`, separated by spaces."""
        return f"{self.tag}workflow:job:{job_id}:states"

    def order(self, job_id: str) -> str:
        """ZSET, ids of all items by number."""
        return f"{self.tag}workflow:job:{job_id}:order"

    def step_order(self, job_id: str, step: str) -> str:
        """ZSET, ids of a step's items by number."""
        return f"{self.tag}workflow:job:{job_id}:order:{step}"

    def events(self, job_id: str) -> str:
        """STREAM, events; ids are `<seq>-0`."""
        return f"{self.tag}workflow:job:{job_id}:events"

    def undo(self, job_id: str) -> str:
        """LIST, tokens of operations that can be undone, the latest first."""
        return f"{self.tag}workflow:job:{job_id}:undo"

    def operations(self, job_id: str) -> str:
        """HASH, token to the data needed to undo the operation (JSON)."""
        return f"{self.tag}workflow:job:{job_id}:operations"

    def undoable(self, job_id: str) -> str:
        """HASH, item id to the token of the last operation on it that can be undone.

        An item without an entry has no `undo_token`. Neither has one whose token begins with `!`:
        that operation has effects, and can only be undone as a whole.
        """
        return f"{self.tag}workflow:job:{job_id}:undoable"

    def data(self, job_id: str) -> str:
        """HASH, `{execution}:{name}` to data that a step stores for later ones, bytes."""
        return f"{self.tag}workflow:job:{job_id}:data"

    def parts(self, job_id: str) -> str:
        """HASH, `{execution}:{part}` to the result of a part of a split step, bytes."""
        return f"{self.tag}workflow:job:{job_id}:parts"

    def outbox(self, job_id: str) -> str:
        """LIST, events not delivered to the webhook yet, oldest first (JSON)."""
        return f"{self.tag}workflow:job:{job_id}:outbox"

    def answer(self, scope: str, key: str, tenant: str = "") -> str:
        """HASH, the stored answer of an Idempotency-Key; `scope` names the request's target."""
        owner = f"wf.of:{tenant}" if tenant else "wf"
        return f"{self.tag}idempotency.{owner}:{scope}:{key}"

    def sequence(self, date: str) -> str:
        """STRING, number of the last job of a day (`YYYYMMDD`)."""
        return f"{self.tag}workflow:seq:{date}"

    def index(self, tenant: str = "") -> str:
        """ZSET, job ids by creation time; without a tenant, those of all tenants."""
        return f"{self.tag}workflow:index:{tenant}" if tenant else f"{self.tag}workflow:index"

    @property
    def running(self) -> str:
        """HASH, `{job_id}` to `{step} {execution}` of jobs with a running step."""
        return f"{self.tag}workflow:running"

    @property
    def reviews(self) -> str:
        """ZSET, jobs waiting for a review, by when it expires or is checked again."""
        return f"{self.tag}workflow:reviews"

    @property
    def jobs_with_effects(self) -> str:
        """SET, jobs with effects that may not be on their undo list; workers reconcile them."""
        return f"{self.tag}workflow:unsettled"

    @property
    def definitions(self) -> str:
        """HASH, workflow name to its definition (JSON); workers write it at start-up."""
        return f"{self.tag}workflow:definitions"

    @property
    def reconciler(self) -> str:
        """STRING, lock of the worker that reconciles steps; one at a time."""
        return f"{self.tag}workflow:reconciler"

    @property
    def deliveries(self) -> str:
        """ZSET, outboxes by when they are due, in Unix milliseconds."""
        return f"{self.tag}workflow:webhooks"

    def delivery(self, name: str) -> str:
        """HASH, state of the delivery of an outbox's first entry."""
        return f"{self.tag}workflow:webhooks:delivery:{name}"

    @property
    def dead_letters(self) -> str:
        """STREAM, dead-lettered deliveries."""
        return f"{self.tag}workflow:webhooks:dlq"

    @property
    def dead_letter_states(self) -> str:
        """HASH, event id to `{dead letter id} {RedriveStatus} {ms} {url}` of each dead letter."""
        return f"{self.tag}workflow:webhooks:letters"

    def redrives(self, job_id: str) -> str:
        """LIST, events of a job to redrive, oldest first; the first one is due."""
        return f"{self.tag}workflow:webhooks:redrives:{job_id}"

    @property
    def wake(self) -> str:
        """CHANNEL, a wake-up: an outbox has a new entry."""
        return f"{self.tag}workflow:webhooks:wake"


#: All keys above except stored answers, which only gateways use.
WORKFLOW_KEYS_PATTERN: Final = "workflow:*"


def workflow_key_patterns(tag: str = "") -> tuple[str, ...]:
    return (f"{tag}{WORKFLOW_KEYS_PATTERN}", f"{tag}idempotency.wf:*", f"{tag}idempotency.wf.of:*")
