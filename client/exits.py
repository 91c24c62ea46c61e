"""How commands end: one table for all of them, in docs/cli.md too."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes."""

    OK = 0
    #: A job failed, or what was looked for is not as it should be.
    FAILED = 1
    #: Wrong use of the command.
    USAGE = 2
    #: The job was canceled.
    CANCELED = 3
    #: No key, a wrong one, or one that may not do this.
    AUTH = 4
    #: No gateway answers, or its Redis is away.
    UNREACHABLE = 5
    #: It took longer than was allowed.
    TIMEOUT = 6
    #: The gateway takes no more work just now.
    BACKPRESSURE = 7
    #: A workflow waits for somebody to decide.
    WAITING = 8
    #: There is no such job, letter, workflow, image or document (EX_NOINPUT).
    MISSING = 66
    #: What was to be written could not be, or a file not be read (EX_IOERR).
    UNWRITTEN = 74
    #: The URL or a setting cannot be one (EX_CONFIG).
    MISCONFIGURED = 78
    #: Ctrl-C.
    INTERRUPTED = 130
    #: Whoever read us went away.
    UNREAD = 141
