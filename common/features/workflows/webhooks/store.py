"""WebhookStore: what is due to webhooks, who has taken it, and what became of it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from common import codec
from common.contracts.webhooks import DeliveryField, DeliveryOutcome
from common.contracts.workflow.fields import WorkflowJobField
from common.contracts.workflow.keys import WorkflowKeys
from common.contracts.workflow.operations import WorkflowOperation
from common.errors import CorruptKey
from common.features.workflows.types import WorkflowAnswer
from common.features.workflows.webhooks.dead_letters import WebhookDeadLetter
from common.jobs.store import read_reply
from common.redis.batching import ScriptBatcher
from common.redis.scripts import Argument, Record, Reply

#: Within an event's id, `{job_id}:{type}:{digest}`. No job's id has one.
_SEPARATOR: Final = ":"
_FIELDS: Final = (DeliveryField.TOKEN, DeliveryField.ATTEMPT, DeliveryField.DETAIL)


class Delivery(NamedTuple):
    """A job's webhook with something to tell, or a dead letter that is sent again."""

    job_id: str
    #: Of a letter; empty for a job's own deliveries.
    event_id: str
    url: str
    due_ms: int
    #: Events that wait to be told, this one included.
    waiting: int
    #: Attempts of the first one.
    attempts: int
    #: Whether somebody has taken it and not yet said what came of it.
    under_way: bool
    #: What became of the last attempt, JSON; empty where there was none.
    last: bytes


class DeliveryCursor(NamedTuple):
    """The end of a page of deliveries; the next page begins behind it."""

    due_ms: int
    #: How many of those that are due at that time were in this page and the ones before.
    skip: int


class DeliveryReader:
    """Reads only; workers take deliveries with the WebhookStore."""

    def __init__(self, client: Redis, keys: WorkflowKeys | None = None) -> None:
        self._client = client
        self._keys = keys or WorkflowKeys()

    async def next_due(
        self, limit: int, after: DeliveryCursor | None = None, offset: int = 0
    ) -> list[Delivery]:
        """Those that are due next, soonest first: from the `offset`-th on, or after a cursor."""
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
    """From three replies; what a foreign hand has made of a key counts as nothing."""
    raw, waiting, state = replies
    job_id, separator, _ = name.partition(_SEPARATOR)
    token, attempts, detail = state if isinstance(state, list) else (None, None, None)
    # Of a letter it is `id status ms url`; a URL has no blanks.
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
    """The last of JSON objects that are separated by commas."""
    try:
        attempts = codec.loads(b"[%s]" % detail)
    except ValueError:
        return b""
    return codec.dumps(attempts[-1]) if attempts else b""


#: How long nobody looks at a delivery whose keys are not what they should be.
POSTPONE_MS: Final = 60_000


class DueDelivery(NamedTuple):
    """Something to be looked at: whose, where it goes, and when, by Redis' clock."""

    name: str
    #: Empty where nobody knows.
    url: str
    at_ms: float


class DueDeliveries(NamedTuple):
    """Deliveries in the order in which they are due, and what time it is."""

    now_ms: int
    entries: Sequence[DueDelivery]


class ClaimedDelivery(NamedTuple):
    """A delivery that is this process's own until its lease runs out."""

    #: A job's id, or an event's where its letter is sent again.
    name: str
    token: str
    #: From 1 on; attempts whose worker died count.
    attempt: int
    #: The outbox's entry, or the letter's body.
    content: bytes
    url: str
    workflow: str
    #: Earlier attempts: JSON objects, separated by commas.
    detail: bytes = b""

    @property
    def is_redrive(self) -> bool:
        """Whether it is a letter that is sent again."""
        return _SEPARATOR in self.name

    @property
    def job_id(self) -> str:
        return self.name.partition(_SEPARATOR)[0]


class WebhookStore:
    """Writes travel through a batcher of the workflow script; what is read, by the client."""

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
            seen = await read_reply(pipe.execute())
        if seen is None:  # what is under that name is none of ours
            return DueDeliveries(0, ())
        (seconds, micros), entries = seen
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
        # Of a letter it is `id status ms url`; a URL has no blanks.
        return [text.rpartition(" ")[2] for text in texts]

    async def claim(self, names: Sequence[str], lease_ms: int) -> list[ClaimedDelivery]:
        """Claim those that are due and that nobody else has."""
        tokens = [secrets.token_hex(8) for _ in names]
        records = [
            Record(WorkflowOperation.CLAIM_DELIVERY.value, (), (name, token, lease_ms))
            for name, token in zip(names, tokens)
        ]
        taken: list[ClaimedDelivery] = []
        for name, token, reply in zip(names, tokens, await self._batcher.submit(records)):
            if isinstance(reply, CorruptKey):
                await self._postpone(name)
            elif _parse_answer(reply) is WorkflowAnswer.OK:
                _, attempt, content, url, workflow, detail = reply.more
                where = codec.decode_text(url), codec.decode_text(workflow)
                taken.append(ClaimedDelivery(name, token, int(attempt), content, *where, detail))
        return taken

    async def settle(
        self,
        taken: ClaimedDelivery,
        becomes: DeliveryOutcome,
        *,
        delay_ms: int = 0,
        detail: bytes = b"",
        letter: WebhookDeadLetter | None = None,
    ) -> WorkflowAnswer:
        """Say what became of an attempt. OK, ALREADY or LOST."""
        args: list[Argument] = [taken.name, taken.job_id, taken.token, becomes.value]
        args += [delay_ms, detail, *(letter.fields() if letter is not None else ())]
        size = len(letter.body) if letter is not None else 0
        operation = WorkflowOperation.SETTLE_DELIVERY.value
        return _parse_answer(await self._batcher.call(Record(operation, (), args, size=size)))

    async def _postpone(self, name: str) -> None:
        """Something is wrong with its keys that only a person can mend: not again at once."""
        seconds, _ = await read_reply(self._client.time())
        later_ms = int(seconds) * 1000 + POSTPONE_MS
        await read_reply(self._client.zadd(self.keys.deliveries, {name: later_ms}, xx=True))


def _parse_answer(reply: Reply) -> WorkflowAnswer:
    assert isinstance(reply.value, bytes)
    return WorkflowAnswer(reply.value.decode())
