"""A model server that says what it is told to, over real sockets, in OpenAI's HTTP dialect.

In a test:

    async with ModelServer() as server:
        server.say("hello there", pause_s=0.01)       # the next answer; then the one after it
        server.call(("clock", {"zone": "utc"}))       # an answer that wants a tool called
        server.script(Answer([*tokens("one two"), Cut(reset=True)]))   # anything: model_answers
        … MODEL_URL=server.url …
        seen = await server.asked(1)                  # wait for the first request
        seen.body, seen.headers, seen.tokens, seen.hung_up, await seen.over.wait()

Where nothing is scripted the prompt decides (`model_answers.by_prompt`): "count to 50 slowly",
"say exactly: …", "call clock with {…}", "think of …", "fail with 500", "die after 3",
"talk garbage", "say nothing"; anything else is answered "You said: …".

`stop()` and `start()` take the server away and back at the same address. `state` is READY, LOADING
(503), BROKEN (500) or MUTE (takes connections, says nothing). `dialect` is LLAMA (`/health`,
`/props` with slots), VLLM (an empty `/health`) or OLLAMA (neither); `strict` refuses members it
does not know.

As a process: `python -m tests.support.model_server --port 0` prints its URL; `GET /seen`
there tells what was asked as JSON: `[{"path", "tokens", "over", "hung_up"}]`.
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

from tests.support.model_answers import Answer, by_prompt, called, said, vector_of
from tests.support.model_wire import CutOff, HungUp, Reply, Seen

MODEL = "scripted-1"
READY, LOADING, BROKEN, MUTE = "ready", "loading", "broken", "mute"
#: Members of a request that every server knows.
KNOWN = {
    "model", "messages", "stream", "stream_options", "max_tokens", "temperature", "top_p", "stop",
    "seed", "presence_penalty", "frequency_penalty", "response_format", "tools", "tool_choice",
    "n", "input", "dimensions", "encoding_format",
}  # fmt: skip
CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"


class Dialect(Enum):
    """Whose habits it has."""

    LLAMA = "llama"
    VLLM = "vllm"
    OLLAMA = "ollama"


class ModelServer:
    """See above."""

    def __init__(
        self, *, dialect: Dialect = Dialect.LLAMA, slots: int = 2, prefix: str = "", port: int = 0
    ) -> None:
        self.dialect = dialect
        self.slots = slots
        self.prefix = prefix
        self.port = port
        self.state = READY
        self.strict = False
        self.model = MODEL
        #: Requests with another bearer get 401.
        self.api_key = ""
        #: Everything that was asked for an answer or for embeddings.
        self.seen: list[Seen] = []
        #: Paths of all requests, probes too.
        self.paths: list[str] = []
        #: Answers to embeddings that tests want to be wrong; else they are right.
        self.embeddings: Callable[[dict[str, Any]], Answer] | None = None
        self.active = self.most_active = self.connections = 0
        self._answers: list[Answer] = []
        self._always: Answer | None = None
        self._server: asyncio.AbstractServer | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._news = asyncio.Condition()

    @property
    def url(self) -> str:
        """As MODEL_URL wants it."""
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    # -- the script --------------------------------------------------------------------------------

    def say(self, text: str, pause_s: float = 0.0, **more: Any) -> None:
        """The next answer says this, word by word."""
        self.script(said(text, pause_s, **more))

    def call(self, *calls: tuple[str, Any], **more: Any) -> None:
        """The next answer wants these tools called."""
        self.script(called(*calls, **more))

    def script(self, *answers: Answer) -> None:
        """The next answers."""
        self._answers += answers

    def always(self, answer: Answer | None) -> None:
        """What is said where nothing else is scripted; None: what the prompt asks for."""
        self._always = answer

    async def asked(self, number: int, timeout_s: float = 10.0) -> Seen:
        """Wait for the so-manyeth request for an answer; the first is 1."""

        async def enough() -> None:
            async with self._news:
                await self._news.wait_for(lambda: len(self.seen) >= number)

        await asyncio.wait_for(enough(), timeout_s)
        return self.seen[number - 1]

    # -- its life ----------------------------------------------------------------------------------

    async def __aenter__(self) -> ModelServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; again at the same port after a `stop`."""
        server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, reuse_address=True, limit=2**24
        )
        self.port = server.sockets[0].getsockname()[1]
        self._server = server

    async def stop(self) -> None:
        """Refuse connections; those that are open break."""
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
            HungUp,
            CutOff,
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
            await reply.patience(3600.0)
        if not path.startswith(self.prefix):
            await reply.json({"error": "not found"}, 404)
            return True
        path = path[len(self.prefix) :]
        if path in (CHAT, EMBEDDINGS) and method == "POST":
            await self._answer(reply, Seen(path, headers, json.loads(raw)))
        else:
            await self._small(reply, path)
        return True

    async def _small(self, reply: Reply, path: str) -> None:
        llama = self.dialect is Dialect.LLAMA
        if path == "/seen":
            await reply.json([_view(seen) for seen in self.seen])
        elif path == "/health" and self.dialect is not Dialect.OLLAMA:
            if self.state != READY:
                await self._trouble(reply)
            elif llama:
                await reply.json({"status": "ok"})
            else:
                await reply.whole(b"", 200, {})
        elif path == "/props" and llama and self.state == READY:
            await reply.json({"total_slots": self.slots, "model_path": f"/m/{self.model}.gguf"})
        elif path == "/v1/models":
            if self.state == READY:
                listed = [{"id": self.model, "object": "model"}] if self.model else []
                await reply.json({"object": "list", "data": listed})
            else:
                await self._trouble(reply)
        else:
            await reply.json({"error": {"code": 404, "message": "File Not Found"}}, 404)

    async def _trouble(self, reply: Reply) -> None:
        if self.state == LOADING:
            error = {"code": 503, "message": "Loading model", "type": "unavailable_error"}
            await reply.json({"error": error}, 503)
        else:
            await reply.json({"error": {"code": 500, "message": "out of order"}}, 500)

    # -- answers -----------------------------------------------------------------------------------

    async def _answer(self, reply: Reply, seen: Seen) -> None:
        self.seen.append(seen)
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        async with self._news:
            self._news.notify_all()
        try:
            if self.state != READY:
                await self._trouble(reply)
            elif self.api_key and seen.headers.get("authorization") != f"Bearer {self.api_key}":
                await reply.json({"error": {"code": 401, "message": "Invalid API Key"}}, 401)
            elif self.strict and not KNOWN.issuperset(seen.body):
                unknown = ", ".join(sorted(set(seen.body) - KNOWN))
                message = f"Unrecognized request argument supplied: {unknown}"
                await reply.json({"error": {"code": 400, "message": message}}, 400)
            elif seen.path == EMBEDDINGS:
                await self._embed(reply, seen)
            else:
                answer = self._answers.pop(0) if self._answers else self._always
                await reply.answer(answer or by_prompt(seen.body), seen, self.model)
        except (HungUp, ConnectionError):
            seen.hung_up = True
            raise HungUp from None
        finally:
            self.active -= 1
            seen.ended = time.monotonic()
            seen.over.set()

    async def _embed(self, reply: Reply, seen: Seen) -> None:
        if self.embeddings is not None:
            await reply.answer(self.embeddings(seen.body), seen, self.model)
            return
        texts = seen.body["input"]
        texts = [texts] if isinstance(texts, str) else texts
        data = [
            {"object": "embedding", "index": index, "embedding": vector_of(text)}
            for index, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": sum(len(text.split()) for text in texts)}
        found = {"object": "list", "data": data[::-1], "model": self.model, "usage": usage}
        await reply.json(found)


def _view(seen: Seen) -> dict[str, Any]:
    over = seen.over.is_set()
    return {"path": seen.path, "tokens": seen.tokens, "over": over, "hung_up": seen.hung_up}


async def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--dialect", choices=[each.value for each in Dialect], default="llama")
    chosen = parser.parse_args()
    server = ModelServer(dialect=Dialect(chosen.dialect), slots=chosen.slots, port=chosen.port)
    async with server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main())
