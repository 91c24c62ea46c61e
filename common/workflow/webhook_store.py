"""WebhookStore: what is due to webhooks, who has taken it, and what became of it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from redis.asyncio import Redis

from common import codec
from common.coalescer import Coalescer
from common.contracts.webhooks import Settlement
from common.contracts.workflow import JobHash, WorkflowKeys, WorkflowOperation
from common.errors import CorruptKey
from common.scripts import Argument, Record, Reply
from common.store import read
from common.workflow.types import WorkflowAnswer
from common.workflow.webhook_letters import Letter

#: Within an event's id, `{job_id}:{type}:{digest}`. No job's id has one.
_SEPARATOR: Final = ":"
#: How long nobody looks at a delivery whose keys are not what they should be.
PUT_OFF_MS: Final = 60_000


class Due(NamedTuple):
    """Something to be looked at: whose, where it goes, and when, by Redis' clock."""

    name: str
    #: Empty where nobody knows.
    url: str
    at_ms: float


class Look(NamedTuple):
    """Deliveries in the order in which they are due, and what time it is."""

    now_ms: int
    entries: Sequence[Due]


class Taken(NamedTuple):
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
        """Whose event it is."""
        return self.name.partition(_SEPARATOR)[0]


class WebhookStore:
    """Writes travel through a coalescer of the workflow script; what is read, by the client."""

    def __init__(
        self, client: Redis, coalescer: Coalescer, keys: WorkflowKeys | None = None
    ) -> None:
        self._client = client
        self._coalescer = coalescer
        self.keys = keys or WorkflowKeys()

    async def look(self, limit: int, offset: int = 0) -> Look:
        """The next deliveries, due or not, soonest first."""
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zrange(self.keys.deliveries, offset, offset + limit - 1, withscores=True)
            seen = await read(pipe.execute())
        if seen is None:  # what is under that name is none of ours
            return Look(0, ())
        (seconds, micros), entries = seen
        names = [codec.text(name) for name, _ in entries]
        urls = await self._urls(names)
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return Look(
            now_ms,
            [Due(name, url, at_ms) for name, url, (_, at_ms) in zip(names, urls, entries)],
        )

    async def _urls(self, names: Sequence[str]) -> list[str]:
        if not names:
            return []
        async with self._client.pipeline(transaction=False) as pipe:
            for name in names:
                if _SEPARATOR in name:
                    pipe.hget(self.keys.letters, name)
                else:
                    pipe.hget(self.keys.job(name), JobHash.WEBHOOK_URL.value)
            found = await read(pipe.execute(raise_on_error=False))
        texts = [codec.text(raw) if isinstance(raw, bytes) else "" for raw in found]
        # Of a letter it is `id status ms url`; a URL has no blanks.
        return [text.rpartition(" ")[2] for text in texts]

    async def take(self, names: Sequence[str], lease_ms: int) -> list[Taken]:
        """Claim those that are due and that nobody else has."""
        tokens = [secrets.token_hex(8) for _ in names]
        records = [
            Record(WorkflowOperation.TAKE_DELIVERY.value, (), (name, token, lease_ms))
            for name, token in zip(names, tokens)
        ]
        taken: list[Taken] = []
        for name, token, reply in zip(names, tokens, await self._coalescer.submit(records)):
            if isinstance(reply, CorruptKey):
                await self._put_off(name)
            elif _found(reply) is WorkflowAnswer.OK:
                _, attempt, content, url, workflow, detail = reply.more
                where = codec.text(url), codec.text(workflow)
                taken.append(Taken(name, token, int(attempt), content, *where, detail))
        return taken

    async def settle(
        self,
        taken: Taken,
        becomes: Settlement,
        *,
        delay_ms: int = 0,
        detail: bytes = b"",
        letter: Letter | None = None,
    ) -> WorkflowAnswer:
        """Say what became of an attempt. OK, ALREADY or LOST."""
        args: list[Argument] = [taken.name, taken.job_id, taken.token, becomes.value]
        args += [delay_ms, detail, *(letter.fields() if letter is not None else ())]
        size = len(letter.body) if letter is not None else 0
        operation = WorkflowOperation.SETTLE_DELIVERY.value
        return _found(await self._coalescer.call(Record(operation, (), args, size=size)))

    async def _put_off(self, name: str) -> None:
        """Something is wrong with its keys that only a person can mend: not again at once."""
        seconds, _ = await read(self._client.time())
        later_ms = int(seconds) * 1000 + PUT_OFF_MS
        await read(self._client.zadd(self.keys.deliveries, {name: later_ms}, xx=True))


def _found(reply: Reply) -> WorkflowAnswer:
    assert isinstance(reply.value, bytes)
    return WorkflowAnswer(reply.value.decode())
