"""A scripted model server with the OpenAI API, over real sockets.

In a test:

    async with ModelServer() as server:
        server.add_text("hello there", pause_s=0.01)   # the next answer
        server.add_tool_calls(("clock", {"zone": "utc"}))   # the answer after it
        server.add_answers(Answer([*tokens("one two"), Cut(reset=True)]))   # see model_answers
        … MODEL_URL=server.url …
        request = await server.wait_for_request(1)   # wait for the first request
        request.body, request.headers, request.tokens, request.hung_up, await request.over.wait()

Without a scripted answer the prompt decides (`model_answers.answer_from_prompt`):
"count to 50 slowly", "say exactly: …", "call clock with {…}", "fail with 500"; anything else is
answered "You said: …".

`stop()` and `start()` restart the server on the same port. `state` is READY, LOADING (503), BROKEN
(500) or MUTE (accepts connections, never responds). `dialect` is LLAMA (`/health`, `/props` with
slots), VLLM (an empty `/health`) or OLLAMA (neither). `strict` rejects unknown members.

As a process: `python -m tests.support.model.server --port 0` prints its URL. `GET /seen`
returns its requests as JSON: `[{"path", "tokens", "over", "hung_up"}]`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from tests.support.model.answers import (
    Answer,
    answer_from_prompt,
    text_answer,
    tool_call_answer,
    vector_of,
)
from tests.support.model.wire import ClientDisconnected, ReceivedRequest, Reply, ScriptedDisconnect

MODEL = "scripted-1"
READY, LOADING, BROKEN, MUTE = "ready", "loading", "broken", "mute"
#: Request members that every server knows.
KNOWN = {
    "model", "messages", "stream", "stream_options", "max_tokens", "temperature", "top_p", "stop",
    "seed", "presence_penalty", "frequency_penalty", "response_format", "tools", "tool_choice",
    "n", "input", "dimensions", "encoding_format",
}  # fmt: skip
CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"


class Dialect(Enum):
    """The server whose behaviour is imitated."""

    LLAMA = "llama"
    VLLM = "vllm"
    OLLAMA = "ollama"


class ModelServer:
    """The scripted server; see the module docstring."""

    def __init__(self, *, dialect: Dialect = Dialect.LLAMA, slots: int = 2, port: int = 0) -> None:
        self.dialect = dialect
        self.slots = slots
        self.port = port
        self.state = READY
        self.strict = False
        self.model = MODEL
        #: Requests with another bearer token get 401.
        self.api_key = ""
        #: All completion and embedding requests.
        self.requests: list[ReceivedRequest] = []
        #: Paths of all requests, including probes.
        self.paths: list[str] = []
        #: Overrides the answers to embedding requests; by default they are correct.
        self.embeddings: Callable[[dict[str, Any]], Answer] | None = None
        self.active = self.most_active = self.connections = 0
        self._answers: list[Answer] = []
        self._always: Answer | None = None
        self._server: asyncio.AbstractServer | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Condition()

    @property
    def url(self) -> str:
        """Value for MODEL_URL."""
        return f"http://127.0.0.1:{self.port}"

    # -- script --------------------------------------------------------------------------------

    def add_text(self, text: str, pause_s: float = 0.0, **more: Any) -> None:
        """Adds an answer with a text, sent word by word."""
        self.add_answers(text_answer(text, pause_s, **more))

    def add_tool_calls(self, *calls: tuple[str, Any], **more: Any) -> None:
        """Adds an answer with tool calls."""
        self.add_answers(tool_call_answer(*calls, **more))

    def add_answers(self, *answers: Answer) -> None:
        """Adds answers; they are used in this order."""
        self._answers += answers

    def set_default(self, answer: Answer | None) -> None:
        """Sets the answer that is used if no other is left; None: the prompt decides."""
        self._always = answer

    async def wait_for_request(self, number: int, timeout_s: float = 10.0) -> ReceivedRequest:
        """Waits for the given request and returns it; the first is 1."""

        async def enough() -> None:
            async with self._changed:
                await self._changed.wait_for(lambda: len(self.requests) >= number)

        await asyncio.wait_for(enough(), timeout_s)
        return self.requests[number - 1]

    # -- lifecycle -------------------------------------------------------------------------------

    async def __aenter__(self) -> ModelServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listens; after a `stop`, on the same port."""
        server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, reuse_address=True, limit=2**24
        )
        self.port = server.sockets[0].getsockname()[1]
        self._server = server

    async def stop(self) -> None:
        """Refuses connections and aborts open ones."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- HTTP --------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._request(reader, writer):
                pass
        except (
            ConnectionError,
            asyncio.IncompleteReadError,
            ClientDisconnected,
            ScriptedDisconnect,
            asyncio.CancelledError,
        ):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        path = target.partition("?")[0]
        self.paths.append(path)
        reply = Reply(reader, writer)
        if self.state == MUTE:
            await reply.wait(3600.0)
        if path in (CHAT, EMBEDDINGS) and method == "POST":
            await self._answer(reply, ReceivedRequest(path, headers, json.loads(raw)))
        else:
            await self._other_request(reply, path)
        return True

    async def _other_request(self, reply: Reply, path: str) -> None:
        llama = self.dialect is Dialect.LLAMA
        if path == "/seen":
            members = "path", "tokens", "hung_up"
            await reply.json(
                [
                    {name: getattr(each, name) for name in members} | {"over": each.over.is_set()}
                    for each in self.requests
                ]
            )
        elif path == "/health" and self.dialect is not Dialect.OLLAMA:
            if self.state != READY:
                await self._unavailable(reply)
            elif llama:
                await reply.json({"status": "ok"})
            else:
                await reply.send_body(b"", 200, {})
        elif path == "/props" and llama and self.state == READY:
            await reply.json({"total_slots": self.slots, "model_path": f"/m/{self.model}.gguf"})
        elif path == "/v1/models":
            if self.state == READY:
                listed = [{"id": self.model, "object": "model"}] if self.model else []
                await reply.json({"object": "list", "data": listed})
            else:
                await self._unavailable(reply)
        else:
            await reply.json({"error": {"code": 404, "message": "File Not Found"}}, 404)

    async def _unavailable(self, reply: Reply) -> None:
        if self.state == LOADING:
            error = {"code": 503, "message": "Loading model", "type": "unavailable_error"}
            await reply.json({"error": error}, 503)
        else:
            await reply.json({"error": {"code": 500, "message": "out of order"}}, 500)

    # -- answers -----------------------------------------------------------------------------------

    async def _answer(self, reply: Reply, request: ReceivedRequest) -> None:
        self.requests.append(request)
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        async with self._changed:
            self._changed.notify_all()
        try:
            if self.state != READY:
                await self._unavailable(reply)
            elif self.api_key and request.headers.get("authorization") != f"Bearer {self.api_key}":
                await reply.json({"error": {"code": 401, "message": "Invalid API Key"}}, 401)
            elif self.strict and not KNOWN.issuperset(request.body):
                unknown = ", ".join(sorted(set(request.body) - KNOWN))
                message = f"Unrecognized request argument supplied: {unknown}"
                await reply.json({"error": {"code": 400, "message": message}}, 400)
            elif request.path == EMBEDDINGS:
                await self._embed(reply, request)
            else:
                answer = self._answers.pop(0) if self._answers else self._always
                await reply.answer(answer or answer_from_prompt(request.body), request, self.model)
        except (ClientDisconnected, ConnectionError):
            request.hung_up = True
            raise ClientDisconnected from None
        finally:
            self.active -= 1
            request.ended = time.monotonic()
            request.over.set()

    async def _embed(self, reply: Reply, request: ReceivedRequest) -> None:
        if self.embeddings is not None:
            await reply.answer(self.embeddings(request.body), request, self.model)
            return
        texts = request.body["input"]
        texts = [texts] if isinstance(texts, str) else texts
        data = [
            {"object": "embedding", "index": index, "embedding": vector_of(text)}
            for index, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": sum(len(text.split()) for text in texts)}
        found = {"object": "list", "data": data[::-1], "model": self.model, "usage": usage}
        await reply.json(found)


async def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    async with ModelServer(port=parser.parse_args().port) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main())
