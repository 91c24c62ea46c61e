"""`backup FILE`: saves a consistent Redis snapshot, the settings and the passwords."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path

from deploy.installer import archive, nofollow
from deploy.installer.credentials import Credentials
from deploy.installer.errors import InstallError, Unsuitable
from deploy.installer.install import Context
from deploy.installer.layout import ADMIN
from deploy.installer.manifest import Manifest
from deploy.installer.options import Options
from deploy.installer.resp import RedisCommandError, Resp
from sluice.common.version import reported_version

POLL_S = 0.05
TIMEOUT_S = 1800.0


def installed(ctx: Context) -> Manifest:
    """The manifest of the installation; raises Unsuitable if Sluice is not installed."""
    manifest = Manifest.load(ctx.layout.manifest)
    if manifest is None:
        raise Unsuitable("Sluice is not installed", "Run `install.sh install` first.")
    return manifest


def admin(ctx: Context) -> Resp:
    """Connects to Redis with full permissions."""
    password = Credentials.load_or_make(ctx.layout).passwords[ADMIN]
    return Resp(ctx.layout.socket, ADMIN, password)


def backup(ctx: Context, options: Options) -> None:
    assert options.file is not None
    target = options.file.absolute()
    manifest = installed(ctx)
    if not target.parent.is_dir():
        raise Unsuitable(f"directory {target.parent} does not exist", "Create it first.")
    if options.dry_run:
        ctx.output.step(f"would: save the Redis data and {ctx.layout.config} to {target}")
        return
    with admin(ctx) as redis:
        keys = redis.number("DBSIZE")
        product, version = reported_version(redis.info("server"))
        ctx.output.step(f"write a Redis snapshot of {keys} keys")
        with ctx.output.reminders("writing the snapshot"):
            snapshot(redis)
        name = _setting(redis, "dbfilename")
    if Path(name).name != name:
        raise InstallError(
            f"Redis reports {name!r} as the name of its snapshot, which is not a file name",
            f"Set dbfilename in {ctx.layout.redis_local_conf} to dump.rdb.",
        )
    members = {archive.SNAPSHOT: ctx.layout.redis_data / name, **_config_files(ctx)}
    with ExitStack() as stack:
        # Redis may replace its snapshot at any time; the open file stays this one.
        files = {
            member: stack.enter_context(nofollow.open_file(path))
            for member, path in members.items()
        }
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        contents = archive.Contents(created, manifest.release, version, keys, redis_product=product)
        packed = os.fstat(files[archive.SNAPSHOT].fileno()).st_size
        ctx.output.step(f"pack {packed / 1e6:.1f} MB of data and the settings")
        with ctx.output.reminders("packing"):
            archive.write(target, contents, files)
    size = target.stat().st_size / 1e6
    ctx.output.line(f"saved {keys} keys and all settings to {target} ({size:.1f} MB)")
    ctx.output.hint("The file contains passwords. It is readable by root only; keep it that way.")


def snapshot(redis: Resp) -> None:
    """Has Redis write a new dump.rdb and waits until it is complete."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            redis.execute("BGSAVE")
            break
        except (
            RedisCommandError
        ):  # another save or a rewrite of the append-only file is in progress
            _pause(deadline)
    while redis.info("persistence")["rdb_bgsave_in_progress"] != "0":
        _pause(deadline)
    if redis.info("persistence")["rdb_last_bgsave_status"] != "ok":
        raise InstallError(
            "Redis could not write its snapshot",
            "See journalctl -u redis.service; is the disk full (df -h /var/lib/sluice), or is "
            "there too little memory to fork (sysctl vm.overcommit_memory=1)?",
        )


def _pause(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise InstallError(
            f"Redis did not finish the snapshot within {TIMEOUT_S:.0f} s",
            "See journalctl -u redis.service, then try again.",
        )
    time.sleep(POLL_S)


def _setting(redis: Resp, name: str) -> str:
    reply = redis.execute("CONFIG", "GET", name)
    assert isinstance(reply, list)
    return str(reply[1])


def _config_files(ctx: Context) -> dict[str, Path]:
    config = ctx.layout.config
    return {
        f"{archive.CONFIG}{path.relative_to(config)}": path
        for path in sorted(config.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
