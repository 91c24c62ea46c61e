"""`sluice key`: creates, lists, rotates and revokes API keys, directly in Redis.

Works without a gateway. A key is printed on stdout once, when it is created; messages go to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import pwd
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from sluice.common.access.audit_log import AuditEntry, AuditLog
from sluice.common.access.key_format import KEY_ID_PATTERN, generate_key_id
from sluice.common.access.record import AccessRecord, InvalidKeySpec, KeySpec
from sluice.common.access.store import (
    DEFAULT_ROTATION_GRACE_S,
    LONGEST_GRACE_S,
    IssuedKey,
    KeyStore,
)
from sluice.common.contracts.access import AccessKeys, AuditAction, Scope
from sluice.common.contracts.jobs import QUEUE_STREAM, TASKS, JobKeys
from sluice.common.errors import NoRedisServer, SettingsError, SluiceError
from sluice.common.jobs.store import read_reply
from sluice.common.process.embedded_redis import EmbeddedRedis
from sluice.common.redis.addresses import is_cluster, validate_url
from sluice.common.redis.connection import async_client
from sluice.common.redis.partitions import HOME_PARTITION
from sluice.common.settings.base import CommonSettings, load_settings
from sluice.common.text import plural
from sluice.ops import redis_target
from sluice.ops.terminal import add_format_option, discard_stdout

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"\A([0-9]{1,9})([smhdw])\Z")
_RATE = re.compile(r"\A([0-9]{1,9}(?:\.[0-9]{1,6})?)/(s|sec|min|m|h|hour|d|day)\Z")
_PER_MIN = {"s": 60.0, "m": 1.0, "h": 1 / 60, "d": 1 / 1440}


def parse_key_id(text: str) -> str:
    if not KEY_ID_PATTERN.match(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a key id; `sluice key ls` lists them")
    return text


def parse_duration(text: str) -> float:
    """An argument such as `90d` or `24h`, in seconds."""
    match = _DURATION.match(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration (try 90d, 24h, 30m or 45s)")
    return float(int(match[1]) * _UNITS_S[match[2]])


def parse_grace(text: str) -> float:
    """The value of --grace, in seconds."""
    seconds = 0.0 if text == "0" else parse_duration(text)
    if seconds > LONGEST_GRACE_S:
        raise argparse.ArgumentTypeError(f"at most {LONGEST_GRACE_S // 86_400}d")
    return seconds


def parse_rate(text: str) -> float:
    """An argument such as `60/min` or `5/s`, in jobs per minute."""
    match = _RATE.match(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate (try 60/min, 5/s or 100/h)")
    return float(match[1]) * _PER_MIN[match[2][0]]


def key_as_json(record: AccessRecord) -> dict[str, Any]:
    """A key as JSON, without its secret."""
    return {
        "key_id": record.key_id,
        "name": record.name,
        "tenant": record.tenant or None,
        "scopes": sorted(record.scopes),
        "tasks": None if record.tasks is None else sorted(record.tasks),
        "tools": None if record.tools is None else sorted(record.tools),
        "rate_per_min": record.rate_per_min,
        "burst": record.effective_burst if record.rate_per_min is not None else None,
        "max_jobs": record.max_jobs,
        "created_ts": record.created_ms,
        "expires_ts": record.expires_ms,
    }


def format_limits(record: AccessRecord) -> str:
    """The limits of a key, as shown in the list."""
    parts = []
    if record.rate_per_min is not None:
        parts.append(f"{record.rate_per_min:g}/min burst {record.effective_burst}")
    if record.max_jobs is not None:
        parts.append(plural(record.max_jobs, "job"))
    if record.tasks is not None:
        parts.append("+".join(sorted(record.tasks)))
    if record.tools is not None:
        parts.append(f"tools {'+'.join(sorted(record.tools)) or 'none'}")
    return ", ".join(parts) or "-"


def format_time(ms: int | None) -> str:
    """A timestamp in UTC, to the minute."""
    if ms is None:
        return "-"
    try:
        when = datetime.fromtimestamp(ms / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return "?"
    return f"{when:%Y-%m-%d %H:%M}Z"


def format_expiry(ms: int | None) -> str:
    """The expiry time of a key; marked if it has passed."""
    return (
        f"{format_time(ms)} (expired)"
        if ms is not None and ms < time.time() * 1000
        else format_time(ms)
    )


#: EX_USAGE, EX_NOINPUT and EX_IOERR of sysexits.h; 128 + SIGPIPE.
EXIT_USAGE, EXIT_NOT_FOUND, EXIT_IO_ERROR, EXIT_BROKEN_PIPE = 64, 66, 74, 141


class NoSuchKey(SluiceError):
    """No key with this id."""

    exit_code = EXIT_NOT_FOUND


class KeyNotPrinted(SluiceError):
    """The key was created but could not be printed."""

    exit_code = EXIT_IO_ERROR


@dataclass(frozen=True)
class KeyAdmin:
    """The key store and the audit log."""

    keys: KeyStore
    audit_log: AuditLog

    async def log_action(self, action: AuditAction, target: str) -> None:
        """Write an action to the audit log, before it is executed."""
        await self.audit_log.write(AuditEntry(who=f"local:{_user()}", action=action, target=target))


# -- command line ----------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Create, list, rotate and revoke API keys, directly in Redis. Works without a gateway."
    )
    parser.epilog = """Examples:
  sluice key create --name "web shop" --tenant shop --rate 60/min
  sluice key create --name monitoring --scope metrics --expires 90d
  sluice key ls
  sluice key rotate k3x9a2b7 --grace 1h
  sluice key revoke k3x9a2b7"""
    parser.add_argument(
        "--redis", metavar="URL", help="URL of Redis (default: REDIS_URL, or the installed one)"
    )
    actions = parser.add_subparsers(dest="action", required=True)
    _add_create(actions.add_parser("create", help="create a key and print it once"))
    list_ = actions.add_parser("ls", help="list keys, without their secrets")
    list_.set_defaults(work=_list)
    rotate = actions.add_parser(
        "rotate", help="replace the secret of a key and print the new key once"
    )
    rotate.add_argument("id", type=parse_key_id)
    rotate.add_argument(
        "--grace",
        type=parse_grace,
        default=float(DEFAULT_ROTATION_GRACE_S),
        metavar="TIME",
        help="how long the old secret stays valid, such as 0s (default: 24h)",
    )
    rotate.set_defaults(work=_rotate)
    revoke = actions.add_parser("revoke", help="revoke a key immediately")
    revoke.add_argument("id", type=parse_key_id)
    revoke.set_defaults(work=_revoke)
    for action in actions.choices.values():
        add_format_option(action, "text", "json")


def _add_create(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--name", required=True, help="owner and purpose of the key")
    add(
        "--tenant",
        default="",
        help="tenant of the key's jobs (default: none; the key sees all tenants)",
    )
    scopes = [scope.value for scope in Scope]
    add(
        "--scope",
        action="append",
        choices=scopes,
        help="permission; repeatable (default: jobs:write and jobs:read)",
    )
    add(
        "--expires",
        type=parse_duration,
        metavar="TIME",
        help="validity, such as 90d (default: unlimited)",
    )
    add("--task", action="append", choices=TASKS, help="allowed task; repeatable (default: all)")
    add("--tool", action="append", help="tool that jobs may use; repeatable (default: all)")
    add("--no-tools", action="store_true", help="jobs may not use tools")
    add(
        "--rate",
        type=parse_rate,
        metavar="N/min",
        help="rate limit of submissions, such as 60/min or 5/s",
    )
    add("--burst", type=int, metavar="N", help="burst size (default: the jobs of one minute)")
    add("--max-jobs", type=int, metavar="N", help="maximum number of unfinished jobs")
    parser.set_defaults(work=_create)


def run(arguments: argparse.Namespace) -> int:
    work: Callable[[KeyAdmin, argparse.Namespace], Awaitable[None]] = arguments.work
    try:
        with _redis_url(arguments.redis) as url:
            asyncio.run(_run_with_store(url, work, arguments))
    except InvalidKeySpec as error:
        return _fail(error, EXIT_USAGE)
    except SluiceError as error:
        return _fail(error, error.exit_code)
    except BrokenPipeError:  # the reader of stdout closed the pipe
        return EXIT_BROKEN_PIPE
    except OSError as error:
        return _fail(error, EXIT_IO_ERROR)
    except KeyboardInterrupt:
        return 130
    return 0


async def _run_with_store(
    url: str,
    work: Callable[[KeyAdmin, argparse.Namespace], Awaitable[None]],
    arguments: argparse.Namespace,
) -> None:
    client = async_client(url, connections=2)
    try:
        names = AccessKeys(await _home_tag(client, url))
        await work(KeyAdmin(KeyStore(client, names), AuditLog(client, names)), arguments)
    finally:
        await client.aclose()


async def _home_tag(client: Redis, url: str) -> str:
    """The hash tag of the keys' names in Redis; empty without partitions.

    Without QUEUE_PARTITIONS it is derived from the schema key that processes with partitions write.
    """
    home = JobKeys(os.environ.get("QUEUE_STREAM_KEY") or QUEUE_STREAM).partition(HOME_PARTITION)
    partitions = os.environ.get("QUEUE_PARTITIONS", "").strip()
    if partitions.isdecimal() and int(partitions):
        return home.tag if int(partitions) > 1 else ""
    if is_cluster(url) or await read_reply(client.exists(home.schema)):
        return home.tag
    return ""


@contextmanager
def _redis_url(explicit: str | None) -> Iterator[str]:
    """The URL of Redis. A private Redis that is not running is started for the time being."""
    if explicit is not None and not explicit.strip():  # probably an unset shell variable
        raise SettingsError("--redis is empty; pass a Redis URL or leave it out")
    found = redis_target.find_target(explicit, os.environ)
    if found is not None:
        try:
            validate_url(found.url)
        except ValueError as error:
            raise SettingsError(f"{found.source} {error}") from None
        yield found.url
        return
    settings = load_settings(CommonSettings)
    directory = Path(settings.sluice_data_dir)
    if not (directory / "redis").is_dir():  # a new Redis would have no keys
        raise NoRedisServer(
            f"no Redis found: REDIS_URL is not set, and {directory} has no data of a private "
            "Redis; set REDIS_URL or SLUICE_DATA_DIR, or start a gateway first"
        )
    private = EmbeddedRedis(directory, settings.embedded_fsync)
    try:
        yield private.acquire()
    finally:
        private.release()


# -- work ------------------------------------------------------------------------------------------


async def _create(admin: KeyAdmin, arguments: argparse.Namespace) -> None:
    default_scopes = KeySpec.scopes
    spec = KeySpec(
        name=arguments.name,
        tenant=arguments.tenant,
        scopes=tuple(dict.fromkeys(arguments.scope)) if arguments.scope else default_scopes,
        expires_s=arguments.expires,
        tasks=tuple(dict.fromkeys(arguments.task)) if arguments.task else None,
        tools=_tools(arguments),
        rate_per_min=arguments.rate,
        burst=arguments.burst,
        max_jobs=arguments.max_jobs,
    )
    key_id = generate_key_id()
    await admin.log_action(AuditAction.KEY_CREATE, f"{key_id} {spec.name}")
    issued = await admin.keys.create(spec, key_id)
    if not spec.tenant:
        _info("this key has no --tenant and sees the jobs of all tenants")
    remedy = f"revoke it with `sluice key revoke {key_id}`"
    _print_key(issued, arguments.output, f"key {key_id} created", remedy)


def _tools(arguments: argparse.Namespace) -> tuple[str, ...] | None:
    if arguments.no_tools and arguments.tool:
        raise InvalidKeySpec("--tool and --no-tools cannot be combined")
    if arguments.no_tools:
        return ()
    return tuple(dict.fromkeys(arguments.tool)) if arguments.tool else None


async def _rotate(admin: KeyAdmin, arguments: argparse.Namespace) -> None:
    await _existing(admin, arguments.id)
    await admin.log_action(AuditAction.KEY_ROTATE, arguments.id)
    issued = await admin.keys.rotate(arguments.id, arguments.grace)
    if issued is None:
        raise _no_such_key(arguments.id)
    message = (
        f"key {arguments.id} has a new secret; the old one is valid for {arguments.grace:.0f} s"
    )
    remedy = f"create another with `sluice key rotate {arguments.id}`"
    _print_key(issued, arguments.output, message, remedy)


async def _revoke(admin: KeyAdmin, arguments: argparse.Namespace) -> None:
    record = await _existing(admin, arguments.id)
    await admin.log_action(AuditAction.KEY_REVOKE, arguments.id)
    await admin.keys.revoke(arguments.id)
    _info(f"key {record.key_id} ({record.name}) revoked; gateways reject it within a second")
    if arguments.output == "json":
        _print(json.dumps({"key_id": record.key_id, "revoked": True}))


async def _list(admin: KeyAdmin, arguments: argparse.Namespace) -> None:
    records, used = await admin.keys.list(), await admin.keys.last_used()
    if arguments.output == "json":
        views = [
            {**key_as_json(record), "last_used_ts": used.get(record.key_id)} for record in records
        ]
        _print(json.dumps(views, indent=2))
        return
    rows = [("ID", "NAME", "TENANT", "SCOPES", "LIMITS", "EXPIRES", "LAST USED")]
    for record in records:
        rows.append(
            (
                record.key_id,
                record.name,
                record.tenant or "-",
                ",".join(sorted(record.scopes)),
                format_limits(record),
                format_expiry(record.expires_ms),
                format_time(used.get(record.key_id)),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        _print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip())


async def _existing(admin: KeyAdmin, key_id: str) -> AccessRecord:
    record = await admin.keys.get(key_id)
    if record is None:
        raise _no_such_key(key_id)
    return record


def _no_such_key(key_id: str) -> NoSuchKey:
    return NoSuchKey(f"no key {key_id}; `sluice key ls` lists all keys")


def _print_key(issued: IssuedKey, output: str, message: str, remedy: str) -> None:
    _info(f"{message}; it is shown only once:")
    view = {**key_as_json(issued.record), "key": issued.key}
    try:
        _print(json.dumps(view, indent=2) if output == "json" else issued.key)
    except OSError as error:
        why = error.strerror or error
        raise KeyNotPrinted(f"the key could not be printed ({why}) and is lost; {remedy}") from None


def _print(text: str) -> None:
    """Print to stdout; raises OSError if it could not be written."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "stdout is closed")
    try:
        print(text, flush=True)
    except OSError:
        discard_stdout()
        raise


def _info(message: str) -> None:
    if sys.stderr is not None:  # with file=None, print would use stdout
        print(f"sluice: {message}", file=sys.stderr, flush=True)


def _fail(error: Exception, code: int) -> int:
    _info(str(error))
    return code


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
