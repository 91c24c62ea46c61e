"""An S3 server on loopback (moto), in a separate process because its imports take 100 MB."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def s3_server() -> Iterator[str]:
    """URL of a server that runs within the block."""
    command = [sys.executable, "-m", "tests.support.s3_server"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        url = process.stdout.readline().strip()
        assert url, "the S3 server did not start"
        yield url
        process.stdin.close()


def _serve() -> None:
    """Serves until standard input ends, as it does when the parent process ends."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    _serve()
