"""`sluice key`: make, list, rotate and revoke API keys, straight in Redis.

It works while no gateway runs. The key itself goes to stdout, once; words for people to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import pwd
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from common.access import GRACE_S, Issued, KeyStore
from common.access_record import AccessRecord, BadKey, KeySpec
from common.access_text import new_id
from common.addresses import is_cluster
from common.connection import async_client
from common.contracts.access import AccessKeys, Scope, TrailAction
from common.contracts.jobs import QUEUE_STREAM, TASKS, JobKeys
from common.embedded import EmbeddedRedis
from common.errors import NoRedisServer, SettingsError, SluiceError
from common.partitions import HOME
from common.redis_urls import URL_FORM
from common.settings import CommonSettings, load
from common.store import read
from common.trail import Deed, Trail
from ops import key_text, redis_target

#: sysexits.h EX_USAGE, EX_NOINPUT, EX_IOERR; and what a shell says of who wrote to nobody.
EXIT_USAGE, EXIT_NO_KEY, EXIT_NOT_SHOWN, EXIT_UNREAD = 64, 66, 74, 141


class NoSuchKey(SluiceError):
    """There is no key of this id."""

    exit_code = EXIT_NO_KEY


class NotShown(SluiceError):
    """The deed is done, and the key could not be printed."""

    exit_code = EXIT_NOT_SHOWN


@dataclass(frozen=True)
class Desk:
    """Where keys are made and deeds written down."""

    keys: KeyStore
    trail: Trail

    async def write_down(self, action: TrailAction, target: str) -> None:
        """Before it is done."""
        await self.trail.write(Deed(who=f"local:{_user()}", action=action, target=target))


# -- command line ----------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `create`, `ls`, `rotate` and `revoke` below `sluice key`."""
    parser.add_argument(
        "--redis", metavar="URL", help="which Redis (default: REDIS_URL, or the installed one)"
    )
    actions = parser.add_subparsers(dest="action", required=True)
    _add_create(actions.add_parser("create", help="make a key; it is printed once"))
    listing = actions.add_parser("ls", help="list keys, without their secrets")
    listing.set_defaults(work=_list)
    rotating = actions.add_parser("rotate", help="give a key a new secret; it is printed once")
    rotating.add_argument("id", type=key_text.key_id)
    rotating.add_argument(
        "--grace",
        type=key_text.grace,
        default=float(GRACE_S),
        metavar="TIME",
        help="how long the old secret stays good, such as 24h (the default) or 0s",
    )
    rotating.set_defaults(work=_rotate)
    revoking = actions.add_parser("revoke", help="from now on nobody gets in by it")
    revoking.add_argument("id", type=key_text.key_id)
    revoking.set_defaults(work=_revoke)
    for action in actions.choices.values():
        action.add_argument("-o", "--output", choices=("text", "json"), default="text")


def _add_create(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--name", required=True, help="who has it and what for")
    add("--tenant", default="", help="whose jobs it makes and sees; without, everybody's")
    scopes = [scope.value for scope in Scope]
    add("--scope", action="append", choices=scopes, help="default: jobs:write and jobs:read")
    add("--expires", type=key_text.duration, metavar="TIME", help="good for so long, such as 90d")
    add("--task", action="append", choices=TASKS, help="may ask for this task; default: for all")
    add("--tool", action="append", help="its jobs may use this tool; default: all of them")
    add("--no-tools", action="store_true", help="its jobs may use no tools")
    add(
        "--rate",
        type=key_text.rate,
        metavar="N/min",
        help="jobs it may send, such as 60/min or 5/s",
    )
    add("--burst", type=int, metavar="N", help="jobs at once (default: a minute's)")
    add("--max-jobs", type=int, metavar="N", help="jobs of it that have not ended")
    parser.set_defaults(work=_create)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    work: Callable[[Desk, argparse.Namespace], Awaitable[None]] = arguments.work
    try:
        with _redis_url(arguments.redis) as url:
            asyncio.run(_at_the_desk(url, work, arguments))
    except BadKey as error:
        return _complain(error, EXIT_USAGE)
    except SluiceError as error:
        return _complain(error, error.exit_code)
    except BrokenPipeError:  # whoever read us has seen enough
        return EXIT_UNREAD
    except OSError as error:
        return _complain(error, EXIT_NOT_SHOWN)
    except KeyboardInterrupt:
        return 130
    return 0


async def _at_the_desk(
    url: str,
    work: Callable[[Desk, argparse.Namespace], Awaitable[None]],
    arguments: argparse.Namespace,
) -> None:
    client = async_client(url, connections=2)
    try:
        names = AccessKeys(await _home_tag(client, url))
        await work(Desk(KeyStore(client, names), Trail(client, names)), arguments)
    finally:
        await client.aclose()


async def _home_tag(client: Redis, url: str) -> str:
    """Under which tag gateways look for keys; '' where jobs are not divided into partitions.

    Processes that divide them have written that down, so that nobody need be told here.
    """
    home = JobKeys(os.environ.get("QUEUE_STREAM_KEY") or QUEUE_STREAM).partition(HOME)
    said = os.environ.get("QUEUE_PARTITIONS", "").strip()
    if said.isdecimal() and int(said):
        return home.tag if int(said) > 1 else ""
    if is_cluster(url) or await read(client.exists(home.schema)):
        return home.tag
    return ""


@contextmanager
def _redis_url(explicit: str | None) -> Iterator[str]:
    """The Redis that is meant; a private one that nobody has running is started for a moment."""
    if explicit is not None and not explicit.strip():  # a variable that is not set, most likely
        raise SettingsError("--redis is empty")
    found = redis_target.find(explicit, os.environ)
    if found is not None:
        if not redis_target.is_url(found.url):
            raise SettingsError(f"{found.source} is no URL of Redis; {URL_FORM}")
        yield found.url
        return
    settings = load(CommonSettings)
    directory = Path(settings.sluice_data_dir)
    if not (directory / "redis").is_dir():  # a new one would have nobody else's keys
        raise NoRedisServer(
            f"there is no Redis: REDIS_URL is not set, and {directory} holds no data of a "
            "private one; set REDIS_URL or SLUICE_DATA_DIR, or start a gateway first"
        )
    private = EmbeddedRedis(directory, settings.embedded_fsync)
    try:
        yield private.acquire()
    finally:
        private.release()


# -- work ------------------------------------------------------------------------------------------


async def _create(desk: Desk, arguments: argparse.Namespace) -> None:
    usual = KeySpec.scopes
    spec = KeySpec(
        name=arguments.name,
        tenant=arguments.tenant,
        scopes=tuple(dict.fromkeys(arguments.scope)) if arguments.scope else usual,
        expires_s=arguments.expires,
        tasks=tuple(dict.fromkeys(arguments.task)) if arguments.task else None,
        tools=_tools(arguments),
        rate_per_min=arguments.rate,
        burst=arguments.burst,
        max_jobs=arguments.max_jobs,
    )
    key_id = new_id()
    await desk.write_down(TrailAction.KEY_CREATE, f"{key_id} {spec.name}")
    issued = await desk.keys.create(spec, key_id)
    if not spec.tenant:
        _say("without --tenant, this key sees the jobs of every tenant")
    remedy = f"take it back with `sluice key revoke {key_id}`"
    _hand_over(issued, arguments.output, f"key {key_id} is made", remedy)


def _tools(arguments: argparse.Namespace) -> tuple[str, ...] | None:
    if arguments.no_tools and arguments.tool:
        raise BadKey("--tool and --no-tools contradict each other")
    if arguments.no_tools:
        return ()
    return tuple(dict.fromkeys(arguments.tool)) if arguments.tool else None


async def _rotate(desk: Desk, arguments: argparse.Namespace) -> None:
    await _existing(desk, arguments.id)
    await desk.write_down(TrailAction.KEY_ROTATE, arguments.id)
    issued = await desk.keys.rotate(arguments.id, arguments.grace)
    if issued is None:
        raise _no_such_key(arguments.id)
    words = f"key {arguments.id} has a new secret; the old one is good for {arguments.grace:.0f} s"
    remedy = f"make another with `sluice key rotate {arguments.id}`"
    _hand_over(issued, arguments.output, words, remedy)


async def _revoke(desk: Desk, arguments: argparse.Namespace) -> None:
    record = await _existing(desk, arguments.id)
    await desk.write_down(TrailAction.KEY_REVOKE, arguments.id)
    await desk.keys.revoke(arguments.id)
    _say(f"key {record.key_id} ({record.name}) is revoked; gateways know within a second")
    if arguments.output == "json":
        _print(json.dumps({"key_id": record.key_id, "revoked": True}))


async def _list(desk: Desk, arguments: argparse.Namespace) -> None:
    records, used = await desk.keys.list(), await desk.keys.last_used()
    if arguments.output == "json":
        views = [
            {**key_text.view(record), "last_used_ts": used.get(record.key_id)} for record in records
        ]
        _print(json.dumps(views, indent=2))
        return
    rows = [("ID", "NAME", "TENANT", "SCOPES", "LIMITS", "EXPIRES", "LAST USED")]
    for record in records:
        seen = used.get(record.key_id)
        rows.append(
            (
                record.key_id,
                record.name,
                record.tenant or "-",
                ",".join(sorted(record.scopes)),
                key_text.limits(record),
                key_text.end(record.expires_ms),
                key_text.day(seen),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        _print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip())


async def _existing(desk: Desk, key_id: str) -> AccessRecord:
    record = await desk.keys.get(key_id)
    if record is None:
        raise _no_such_key(key_id)
    return record


def _no_such_key(key_id: str) -> NoSuchKey:
    return NoSuchKey(f"there is no key {key_id}; `sluice key ls` has them all")


def _hand_over(issued: Issued, output: str, words: str, remedy: str) -> None:
    _say(f"{words}; it is shown this once:")
    view = {**key_text.view(issued.record), "key": issued.key}
    try:
        _print(json.dumps(view, indent=2) if output == "json" else issued.key)
    except OSError as error:
        why = error.strerror or error
        raise NotShown(f"it could not be printed ({why}), so nobody has it; {remedy}") from None


def _print(text: str) -> None:
    """To stdout, for certain, or raises OSError."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "stdout is closed")
    try:
        print(text, flush=True)
    except OSError:  # and keep the interpreter from trying again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _say(words: str) -> None:
    if sys.stderr is not None:  # else print would take stdout
        print(f"sluice: {words}", file=sys.stderr, flush=True)


def _complain(error: Exception, code: int) -> int:
    _say(str(error))
    return code


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
