"""How many files, and so connections, this process may have open at once."""

from __future__ import annotations

import resource


def allow_files(wanted: int) -> int:
    """Make room for so many, as far as that is ours to do; returns for how many there is.

    The usual soft limit of 1024 files is there for programs that use select(); the hard one is ours
    to use.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, wanted)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft
