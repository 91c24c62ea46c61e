"""Deliberate faults in core places, each of which the fast tier must detect."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from tools.mutants.mutant import Mutant

_LUA: Final = "common/jobs/lua"


class Fault(NamedTuple):
    """A change that breaks one promise. `before` occurs once in the file."""

    name: str
    path: str
    before: str
    after: str


FAULTS: Final = (
    Fault(
        "drop the XACK",
        f"{_LUA}/lib/prelude.lua",
        "  redis.pcall('XACK', queue, group, message_id)\n",
        "",
    ),
    Fault(
        "acknowledge a job that cannot be ended",
        f"{_LUA}/attempt/finish.lua",
        "  redis.call('EXPIRE', job, ttl) -- must come first",
        "  acknowledge(group, message_id)\n  redis.call('EXPIRE', job, ttl) -- must come first",
    ),
    Fault(
        "skip the fence of FINISH",
        f"{_LUA}/attempt/finish.lua",
        "if held[1] ~= attempt or held[2] ~= token then",
        "if false then",
    ),
    Fault(
        "forget the EXPIRE of the events",
        f"{_LUA}/attempt/emit.lua",
        "  redis.call('EXPIRE', events, ttl)\n",
        "",
    ),
    Fault(
        "renew the lease of another attempt",
        f"{_LUA}/attempt/renew.lua",
        "if TERMINAL[record[1]] or held[1] ~= attempt or held[2] ~= token then",
        "if TERMINAL[record[1]] then",
    ),
    Fault(
        "start an attempt while another holds its lease",
        f"{_LUA}/attempt/begin.lua",
        "if deadline > now_ms then",
        "if false then",
    ),
    Fault(
        "retry a job that crashes its worker for ever",
        f"{_LUA}/attempt/begin.lua",
        "if attempt - (tonumber(released) or 0) >= max_attempts then",
        "if false then",
    ),
    Fault(
        "create a second job for an Idempotency-Key",
        f"{_LUA}/gateway/enqueue.lua",
        "if known and known ~= job_id then",
        "if false then",
    ),
    Fault(
        "claim messages whose lease has not expired",
        "worker/queue/recovery.py",
        "worker.consumer, worker.lease_ms, cursor,",
        "worker.consumer, 0, cursor,",
    ),
    Fault(
        "lose an event in the hub",
        "gateway/events/stream_reader.py",
        "            watch.deliver(frames)",
        "            watch.deliver(frames[1:])",
    ),
    Fault(
        "send an event again after a reconnect",
        "gateway/events/hub.py",
        'start = f"({ms}-{seq}" if',
        'start = f"{ms}-{seq}" if',
    ),
    Fault(
        "accept the job id of another tenant",
        "gateway/auth/callers.py",
        "return self.sees_all or self.owns(job_id)",
        "return True",
    ),
    Fault(
        "accept a key without the scope of the route",
        "gateway/auth/middleware.py",
        "            raise invalid_key("
        '"The API key is not valid: mistyped, expired or revoked.")\n'
        "        if not permission.allows(caller.scopes, sees_all=caller.sees_all):",
        "            raise invalid_key("
        '"The API key is not valid: mistyped, expired or revoked.")\n'
        "        if False:",
    ),
)


def faults_in(root: Path) -> list[Mutant]:
    """The faults as mutants of a checkout; raises ValueError if the code has changed."""
    found = []
    for fault in FAULTS:
        source = (root / fault.path).read_text()
        if source.count(fault.before) != 1:
            raise ValueError(f"{fault.path} does not have once: {fault.before}")
        line = source[: source.index(fault.before)].count("\n") + 1
        apply = partial(source.replace, fault.before, fault.after)
        found.append(Mutant(f"{fault.path}:{fault.name}", fault.path, fault.name, line, apply))
    return found
