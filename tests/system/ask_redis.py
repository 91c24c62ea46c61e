"""Runs inside the machine: sends commands to Redis with an installed credential.

The argument is the file with the credential's URL. The commands are read from stdin as a JSON list
of lists; the replies are written to stdout as a JSON list of texts: JSON, or the error of Redis.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import redis


def ask(client: Any, command: list[str]) -> str:
    try:
        return json.dumps(client.execute_command(*command), default=str)
    except redis.RedisError as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    url = Path(sys.argv[1]).read_text().strip()
    client = redis.Redis.from_url(url, decode_responses=True)
    client.response_callbacks.clear()  # raw replies, without conversion by the client
    json.dump([ask(client, command) for command in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
