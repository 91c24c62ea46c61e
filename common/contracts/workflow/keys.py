"""Every key of the workflows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class WorkflowKeys:
    """Every key of the workflows."""

    #: The home partition's (`JobKeys.tag`).
    tag: str = ""

    def job(self, job_id: str) -> str:
        return f"{self.tag}workflow:job:{job_id}"

    def steps(self, job_id: str) -> str:
        return f"{self.tag}workflow:job:{job_id}:steps"

    def items(self, job_id: str) -> str:
        """HASH, item id to its payload, JSON."""
        return f"{self.tag}workflow:job:{job_id}:items"

    def states(self, job_id: str) -> str:
        """HASH, item id to `status version edited confidence`, separated by spaces."""
        return f"{self.tag}workflow:job:{job_id}:states"

    def order(self, job_id: str) -> str:
        """ZSET, ids of all items by their number."""
        return f"{self.tag}workflow:job:{job_id}:order"

    def step_order(self, job_id: str, step: str) -> str:
        """ZSET, ids of a step's items by their number."""
        return f"{self.tag}workflow:job:{job_id}:order:{step}"

    def events(self, job_id: str) -> str:
        """STREAM, what happened; ids are `<seq>-0`."""
        return f"{self.tag}workflow:job:{job_id}:events"

    def undo(self, job_id: str) -> str:
        """LIST, tokens of operations that can be undone, the last one first."""
        return f"{self.tag}workflow:job:{job_id}:undo"

    def operations(self, job_id: str) -> str:
        """HASH, token to what the undoing takes, JSON."""
        return f"{self.tag}workflow:job:{job_id}:operations"

    def undoable(self, job_id: str) -> str:
        """HASH, item id to the token of the last operation that changed it and can be undone.

        An item that is not in it has no `undo_token`; nor has one whose token begins with `!`:
        that operation has effects, and can only be undone whole.
        """
        return f"{self.tag}workflow:job:{job_id}:undoable"

    def data(self, job_id: str) -> str:
        """HASH, `{execution}:{name}` to what a step leaves for later ones, bytes."""
        return f"{self.tag}workflow:job:{job_id}:data"

    def parts(self, job_id: str) -> str:
        """HASH, `{execution}:{part}` to what a part of a split step found, bytes."""
        return f"{self.tag}workflow:job:{job_id}:parts"

    def outbox(self, job_id: str) -> str:
        """LIST, what its webhook has not been told yet, oldest first, JSON."""
        return f"{self.tag}workflow:job:{job_id}:outbox"

    def answer(self, scope: str, key: str, tenant: str = "") -> str:
        """HASH, the answer that an Idempotency-Key got; `scope` names the request's target."""
        owner = f"wf.of:{tenant}" if tenant else "wf"
        return f"{self.tag}idempotency.{owner}:{scope}:{key}"

    def sequence(self, date: str) -> str:
        """STRING, number of the last job of a day, `YYYYMMDD`."""
        return f"{self.tag}workflow:seq:{date}"

    def index(self, tenant: str = "") -> str:
        """ZSET, job ids by the time they were made; the nameless one has everybody's."""
        return f"{self.tag}workflow:index:{tenant}" if tenant else f"{self.tag}workflow:index"

    @property
    def running(self) -> str:
        """HASH, `{job_id}` to `{step} {execution}` of jobs of which a step runs."""
        return f"{self.tag}workflow:running"

    @property
    def reviews(self) -> str:
        """ZSET, jobs that wait for a person, by when their review is over or looked at again."""
        return f"{self.tag}workflow:reviews"

    @property
    def jobs_with_effects(self) -> str:
        """SET, jobs with effects that may not be on their undo list: workers look after them."""
        return f"{self.tag}workflow:unsettled"

    @property
    def definitions(self) -> str:
        """HASH, workflow name to its declaration, JSON; workers write it at their start."""
        return f"{self.tag}workflow:definitions"

    @property
    def reconciler(self) -> str:
        """STRING, who looks after stranded steps just now; one at a time."""
        return f"{self.tag}workflow:reconciler"

    @property
    def deliveries(self) -> str:
        """ZSET, whose outbox is to be looked at when, in milliseconds."""
        return f"{self.tag}workflow:webhooks"

    def delivery(self, name: str) -> str:
        """HASH, how far the delivery of an outbox's first entry has got."""
        return f"{self.tag}workflow:webhooks:delivery:{name}"

    @property
    def dead_letters(self) -> str:
        """STREAM, deliveries that were given up."""
        return f"{self.tag}workflow:webhooks:dlq"

    @property
    def dead_letter_states(self) -> str:
        """HASH, event id to `{letter's id} {RedriveStatus} {ms} {url}` of those in that stream."""
        return f"{self.tag}workflow:webhooks:letters"

    def redrives(self, job_id: str) -> str:
        """LIST, events of a job whose letters are sent again, oldest first; the first is due."""
        return f"{self.tag}workflow:webhooks:redrives:{job_id}"

    @property
    def wake(self) -> str:
        """CHANNEL, some outbox has got an entry."""
        return f"{self.tag}workflow:webhooks:wake"


#: All keys above but remembered answers, with which only gateways have to do.
WORKFLOW_KEYS_PATTERN: Final = "workflow:*"


def workflow_key_patterns(tag: str = "") -> tuple[str, ...]:
    return (f"{tag}{WORKFLOW_KEYS_PATTERN}", f"{tag}idempotency.wf:*", f"{tag}idempotency.wf.of:*")
