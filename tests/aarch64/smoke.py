"""Tests that run under emulation: one or two files of each part, a few minutes altogether."""

from __future__ import annotations

#: fakeredis, and Debian's Redis for aarch64.
SERVERS = ("fakeredis", "redis-system")
TESTS = (
    "tests/common/test_codec.py",
    "tests/common/jobs/scripts/attempt/test_finish.py",
    "tests/gateway/test_smoke.py",
    "tests/worker/queue/test_reader.py",
    "tests/worker/execution/test_executor.py",
)
