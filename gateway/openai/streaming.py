"""The answer to a request with `stream`: an event stream of chunks that ends with `[DONE]`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from common.cancellation import cancel
from gateway.openai.asking import Asked, done
from gateway.openai.chat_answer import chat_result
from gateway.openai.chat_stream import HEARTBEAT, ChatStream, sse
from gateway.openai.envelope import error_view
from gateway.openai.following import ClientLeft, Following, attended
from gateway.openai.job_errors import answer_restarted
from gateway.openai.retelling import Restarted
from gateway.problems import problem_of
from gateway.streams import HEADERS, SEND_TIMEOUT_S, SSE

#: How long the answer waits for the first thing to say: a job that fails before has a status.
FIRST_S = 1.0


class StreamedAnswer(Response):
    """Sends chunks as they come. Before the first one, a failure is an answer of its own."""

    media_type = SSE

    def __init__(self, asked: Asked, chat: ChatStream, headers: Mapping[str, str]) -> None:
        super().__init__(headers={**headers, **HEADERS})
        del self.headers["content-length"]
        self._asked = asked
        self._chat = chat
        #: Servers say that the client has left as soon as they have sent the last of an answer.
        self._over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream to its end, or the client's."""
        with contextlib.suppress(ClientLeft):
            await attended(self._serve(send), receive, self._give_up)

    async def _give_up(self) -> None:
        if not self._over:
            await self._asked.give_up()

    async def _serve(self, send: Send) -> None:
        following = self._asked.follow()
        coming = asyncio.create_task(self._next(following))
        try:
            await asyncio.wait({coming}, timeout=FIRST_S)
            if coming.done():
                coming.result()  # a Problem here is still answered as one
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            piece, more = self._chat.begin(), True
            while more:
                await _send_body(send, piece)
                piece, more = await self._told(coming)
                if more:
                    coming = asyncio.create_task(self._next(following))
            self._over = True
            await _send_body(send, piece, more=False)
        finally:
            following.close()
            await cancel(coming)

    async def _told(self, coming: asyncio.Future[tuple[bytes, bool]]) -> tuple[bytes, bool]:
        """What comes next; once the stream has begun, faults are told within it."""
        try:
            return await coming
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                raise
            view = error_view(problem.status, problem.code, problem.detail)
            return sse(view.model_dump_json()), False

    async def _next(self, following: Following) -> tuple[bytes, bool]:
        """The next bytes for the client, and whether more will follow."""
        loop = asyncio.get_running_loop()
        silent_s = self._asked.state.settings.sse_heartbeat_s
        quiet_until = loop.time() + silent_s
        try:
            while batch := await following.next():
                told = b"".join([self._chat.hear(seen) for seen in batch])
                if told or loop.time() >= quiet_until:  # much may happen that is not told
                    return told or HEARTBEAT, True
            job = await following.end()
            result = chat_result(done(job).result)
            return self._chat.end(result), False
        except Restarted:
            raise answer_restarted(following.job_id) from None


async def _send_body(send: Send, body: bytes, *, more: bool = True) -> None:
    """Send, but not for ever. (`wait_for` would now and then swallow the end of the stream.)"""
    message = {"type": "http.response.body", "body": body, "more_body": more}
    sending = asyncio.ensure_future(send(message))
    try:
        await asyncio.wait({sending}, timeout=SEND_TIMEOUT_S)
        if not sending.done():
            raise ClientLeft
        sending.result()
    finally:
        sending.cancel()
