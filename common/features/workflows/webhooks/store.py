"""WebhookStore: due webhook deliveries, their claims and outcomes."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.webhooks import DeliveryField, DeliveryOutcome
from sluice.common.contracts.workflow.fields import WorkflowJobField
from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.contracts.workflow.operations import WorkflowOperation
from sluice.common.errors import CorruptKey
from sluice.common.features.workflows.types import WorkflowAnswer
from sluice.common.features.workflows.webhooks.dead_letters import WebhookDeadLetter
from sluice.common.jobs.store import read_reply
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.scripts import Argument, Record, Reply

#: Separator in an event id, `{job_id}:{type}:{digest}`. Job ids do not contain it.
_SEPARATOR: Final = ":"
_FIELDS: Final = (DeliveryField.TOKEN, DeliveryField.ATTEMPT, DeliveryField.DETAIL)


class Delivery(NamedTuple):
    """A pending delivery of a job, or the redrive of a dead letter."""

    job_id: str
    #: Of a dead letter; empty for a job's own deliveries.
    event_id: str
    url: str
    due_ms: int
    #: Number of undelivered events, including this one.
    waiting: int
    #: Number of attempts of the first one.
    attempts: int
    #: Whether a worker has claimed it.
    under_way: bool
    #: Result of the last attempt (JSON); empty if there was none.
    last: bytes


class DeliveryCursor(NamedTuple):
    """The end of a page of deliveries; the next page begins after it."""

    due_ms: int
    #: Number of deliveries with that due time in this page and earlier ones.
    skip: int


class DeliveryReader:
    """Reads deliveries; workers claim them with the WebhookStore."""

    def __init__(self, client: Redis, keys: WorkflowKeys | None = None) -> None:
        self._client = client
        self._keys = keys or WorkflowKeys()

    async def next_due(
        self, limit: int, after: DeliveryCursor | None = None, offset: int = 0
    ) -> list[Delivery]:
        """The next deliveries, soonest first: from the `offset`-th on, or after a cursor."""
        first_ms, skipped = after or (float("-inf"), offset)
        found: Any = await read_reply(
            self._client.zrangebyscore(
                self._keys.deliveries, first_ms, "+inf", skipped, limit, withscores=True
            )
        )
        due = [(codec.decode_text(name), int(score)) for name, score in found or ()]
        if not due:
            return []
        async with self._client.pipeline(transaction=False) as pipe:
            for name, _ in due:
                self._ask(pipe, name)
            replies = await read_reply(pipe.execute(raise_on_error=False))
        return [
            _delivery(name, due_ms, replies[index * 3 : index * 3 + 3])
            for index, (name, due_ms) in enumerate(due)
        ]

    async def count(self) -> int:
        return int(await read_reply(self._client.zcard(self._keys.deliveries)) or 0)

    def _ask(self, pipe: Any, name: str) -> None:
        if _SEPARATOR in name:
            pipe.hget(self._keys.dead_letter_states, name)
            pipe.llen(self._keys.redrives(name.partition(_SEPARATOR)[0]))
        else:
            pipe.hget(self._keys.job(name), WorkflowJobField.WEBHOOK_URL)
            pipe.llen(self._keys.outbox(name))
        pipe.hmget(self._keys.delivery(name), list(_FIELDS))


def _delivery(name: str, due_ms: int, replies: Sequence[Any]) -> Delivery:
    """Parse three replies; invalid keys count as empty."""
    raw, waiting, state = replies
    job_id, separator, _ = name.partition(_SEPARATOR)
    token, attempts, detail = state if isinstance(state, list) else (None, None, None)
    # For a dead letter it is `id status ms url`; a URL has no spaces.
    url = codec.decode_text(raw).rpartition(" ")[2] if isinstance(raw, bytes) else ""
    return Delivery(
        job_id,
        name if separator else "",
        url,
        due_ms,
        waiting if isinstance(waiting, int) else 0,
        codec.parse_int(attempts or b""),
        bool(token),
        _last_of(detail or b""),
    )


def _last_of(detail: bytes) -> bytes:
    """The last of comma-separated JSON objects."""
    try:
        attempts = codec.loads(b"[%s]" % detail)
    except ValueError:
        return b""
    return codec.dumps(attempts[-1]) if attempts else b""


#: Delay of a delivery whose keys are corrupt, in milliseconds.
POSTPONE_MS: Final = 60_000


class DueDelivery(NamedTuple):
    """A delivery: its name, URL, and due time by the clock of Redis."""

    name: str
    #: Empty if unknown.
    url: str
    at_ms: float


class DueDeliveries(NamedTuple):
    """Deliveries by due time, and the present time of Redis."""

    now_ms: int
    entries: Sequence[DueDelivery]


class ClaimedDelivery(NamedTuple):
    """A delivery that this process has claimed until its lease expires."""

    #: A job id, or an event id if a dead letter is redriven.
    name: str
    token: str
    #: From 1; attempts whose worker died count.
    attempt: int
    #: The outbox entry, or the body of the dead letter.
    content: bytes
    url: str
    workflow: str
    #: Earlier attempts: JSON objects, comma-separated.
    detail: bytes = b""

    @property
    def is_redrive(self) -> bool:
        """True for the redrive of a dead letter."""
        return _SEPARATOR in self.name

    @property
    def job_id(self) -> str:
        return self.name.partition(_SEPARATOR)[0]


class WebhookStore:
    """Reads directly; the batcher sends writes in calls of the workflow script."""

    def __init__(
        self, client: Redis, batcher: ScriptBatcher, keys: WorkflowKeys | None = None
    ) -> None:
        self._client = client
        self._batcher = batcher
        self.keys = keys or WorkflowKeys()

    async def next_due(self, limit: int, offset: int = 0) -> DueDeliveries:
        """The next deliveries, due or not, soonest first."""
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zrange(self.keys.deliveries, offset, offset + limit - 1, withscores=True)
            replies = await read_reply(pipe.execute())
        if replies is None:  # the key has the wrong type
            return DueDeliveries(0, ())
        (seconds, micros), entries = replies
        names = [codec.decode_text(name) for name, _ in entries]
        urls = await self._urls(names)
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return DueDeliveries(
            now_ms,
            [DueDelivery(name, url, at_ms) for name, url, (_, at_ms) in zip(names, urls, entries)],
        )

    async def _urls(self, names: Sequence[str]) -> list[str]:
        if not names:
            return []
        async with self._client.pipeline(transaction=False) as pipe:
            for name in names:
                if _SEPARATOR in name:
                    pipe.hget(self.keys.dead_letter_states, name)
                else:
                    pipe.hget(self.keys.job(name), WorkflowJobField.WEBHOOK_URL)
            found = await read_reply(pipe.execute(raise_on_error=False))
        texts = [codec.decode_text(raw) if isinstance(raw, bytes) else "" for raw in found]
        # For a dead letter it is `id status ms url`; a URL has no spaces.
        return [text.rpartition(" ")[2] for text in texts]

    async def claim(self, names: Sequence[str], lease_ms: int) -> list[ClaimedDelivery]:
        """Claim those that are due and not claimed by another worker."""
        tokens = [secrets.token_hex(8) for _ in names]
        records = [
            Record(WorkflowOperation.CLAIM_DELIVERY.value, (), (name, token, lease_ms))
            for name, token in zip(names, tokens)
        ]
        claimed: list[ClaimedDelivery] = []
        for name, token, reply in zip(names, tokens, await self._batcher.submit(records)):
            if isinstance(reply, CorruptKey):
                await self._postpone(name)
            elif _parse_answer(reply) is WorkflowAnswer.OK:
                _, attempt, content, url, workflow, detail = reply.more
                where = codec.decode_text(url), codec.decode_text(workflow)
                claimed.append(ClaimedDelivery(name, token, int(attempt), content, *where, detail))
        return claimed

    async def settle(
        self,
        claimed: ClaimedDelivery,
        outcome: DeliveryOutcome,
        *,
        delay_ms: int = 0,
        detail: bytes = b"",
        letter: WebhookDeadLetter | None = None,
    ) -> WorkflowAnswer:
        """Record the outcome of an attempt. OK, ALREADY or LOST."""
        args: list[Argument] = [claimed.name, claimed.job_id, claimed.token, outcome.value]
        args += [delay_ms, detail, *(letter.fields() if letter is not None else ())]
        size = len(letter.body) if letter is not None else 0
        operation = WorkflowOperation.SETTLE_DELIVERY.value
        return _parse_answer(await self._batcher.call(Record(operation, (), args, size=size)))

    async def _postpone(self, name: str) -> None:
        """Its keys are corrupt, which only an operator can repair: do not retry at once."""
        seconds, _ = await read_reply(self._client.time())
        later_ms = int(seconds) * 1000 + POSTPONE_MS
        await read_reply(self._client.zadd(self.keys.deliveries, {name: later_ms}, xx=True))


def _parse_answer(reply: Reply) -> WorkflowAnswer:
    assert isinstance(reply.value, bytes)
    return WorkflowAnswer(reply.value.decode())
