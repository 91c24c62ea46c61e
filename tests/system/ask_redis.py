"""Runs inside the machine: asks Redis under one installed credential.

Its argument is the file with the credential's URL; the commands come on standard input, a JSON list
of lists, and the answers go to standard output, a JSON list of texts: JSON, or Redis' error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import redis


def ask(client: Any, command: list[str]) -> str:
    """One command; its answer as JSON, or the error's text."""
    try:
        return json.dumps(client.execute_command(*command), default=str)
    except redis.RedisError as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    """Ask all of them over one connection."""
    url = Path(sys.argv[1]).read_text().strip()
    client = redis.Redis.from_url(url, decode_responses=True)
    client.response_callbacks.clear()  # as Redis says it, not as the client reads it
    json.dump([ask(client, command) for command in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
