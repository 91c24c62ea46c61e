"""A minimal MCP server of protocol version 2025, quick to start, that can misbehave.

`python server.py [MANNER] [FILE]`; manners: `kind`, `deaf` (never answers), `stubborn` (does
not end when asked), `garbage` (writes invalid lines), `dead` (ends at once). It writes its process
id to FILE.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

OBJECT: dict[str, Any] = {"type": "object"}
PAIR = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
READS = {"readOnlyHint": True}
TOOLS: list[dict[str, Any]] = [
    {"name": "add", "description": "Adds.", "inputSchema": PAIR, "annotations": READS},
    {"name": "append", "description": "Appends a line to a file.", "inputSchema": OBJECT},
    {"name": "die", "description": "Ends the server.", "inputSchema": OBJECT},
    {"name": "die_reading", "inputSchema": OBJECT, "annotations": READS},
    {"name": "fail", "description": "Fails.", "inputSchema": OBJECT},
    {"name": "refuse", "description": "Is refused.", "inputSchema": OBJECT},
    {"name": "wait", "description": "Never comes back.", "inputSchema": OBJECT},
    {"name": "grow", "description": "Adds a tool.", "inputSchema": OBJECT},
    {"name": "environment", "description": "What it was given.", "inputSchema": OBJECT},
    {"name": "bad/name", "description": "Cannot be called.", "inputSchema": OBJECT},
    {"name": "elsewhere", "inputSchema": {"type": "object", "$ref": "http://127.0.0.1:1/"}},
]
writing = threading.Lock()


def send(message: dict[str, Any]) -> None:
    with writing:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def result(request: dict[str, Any], value: dict[str, Any]) -> None:
    send({"id": request["id"], "result": value})


def reply_text(request: dict[str, Any], text: str, *, is_error: bool = False) -> None:
    result(request, {"content": [{"type": "text", "text": text}], "isError": is_error})


def call(request: dict[str, Any]) -> None:
    name, given = request["params"]["name"], request["params"].get("arguments") or {}
    if name == "add":
        reply_text(request, str(given["a"] + given["b"]))
    elif name == "append":
        with open(given["path"], "a") as file:
            file.write(given["line"] + "\n")
        reply_text(request, "appended")
    elif name.startswith("die"):
        os._exit(3)
    elif name == "fail":
        reply_text(request, "out of paper", is_error=True)
    elif name == "refuse":
        send({"id": request["id"], "error": {"code": -32000, "message": "not today"}})
    elif name == "wait":
        Path(given["path"]).write_text("waiting")
    elif name == "grow":
        TOOLS.append({"name": "grown", "description": "New.", "inputSchema": OBJECT})
        send({"method": "notifications/tools/list_changed"})
        reply_text(request, "grown")
    elif name == "environment":
        reply_text(request, json.dumps(dict(os.environ)))
    elif name == "grown":
        reply_text(request, "big")


def serve(*, garbage: bool) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        method = request.get("method")
        if garbage:
            print("Starting up... {not json", flush=True)
        if method == "initialize":
            result(
                request,
                {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {"listChanged": True}},
                    "serverInfo": {"name": "hand", "version": "1"},
                },
            )
        elif method == "tools/list":
            # Two pages.
            second = bool((request.get("params") or {}).get("cursor"))
            page: dict[str, Any] = {"tools": TOOLS[3:] if second else TOOLS[:3]}
            result(request, page if second else {**page, "nextCursor": "more"})
        elif method == "tools/call":
            call(request)
        elif method == "notifications/cancelled":
            Path(sys.argv[2] + ".canceled").write_text("yes")
        elif "id" in request:
            send({"id": request["id"], "error": {"code": -32601, "message": "unknown"}})


def main(manner: str = "kind", path: str = "") -> None:
    if path:
        Path(path + ".new").write_text(str(os.getpid()))
        os.replace(path + ".new", path)
    if manner == "dead":
        sys.exit(7)
    if manner == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if manner == "deaf":
        for _ in sys.stdin:
            pass
    else:
        serve(garbage=manner == "garbage")
    if manner == "stubborn":
        time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
