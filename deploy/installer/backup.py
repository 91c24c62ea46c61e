"""`backup FILE`: a consistent snapshot of Redis, with settings and passwords."""

from __future__ import annotations

import os
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

from deploy.installer import archive
from deploy.installer.credentials import Credentials
from deploy.installer.errors import InstallError, Unsuitable
from deploy.installer.install import Workshop
from deploy.installer.layout import ADMIN
from deploy.installer.manifest import Manifest
from deploy.installer.options import Options
from deploy.installer.resp import RedisRefused, Resp

POLL_S = 0.05
TIMEOUT_S = 1800.0


def installed(shop: Workshop) -> Manifest:
    """What is on the box; raises Unsuitable where nothing is."""
    manifest = Manifest.load(shop.layout.manifest)
    if manifest is None:
        raise Unsuitable("nothing is installed here", "Use `install.sh install` first.")
    return manifest


def admin(shop: Workshop) -> Resp:
    """Redis, as one who may do everything."""
    password = Credentials.load_or_make(shop.layout).passwords[ADMIN]
    return Resp(shop.layout.socket, ADMIN, password)


def backup(shop: Workshop, options: Options) -> None:
    """Save it all in one file."""
    assert options.file is not None
    target = options.file.absolute()
    manifest = installed(shop)
    if not target.parent.is_dir():
        raise Unsuitable(f"there is no directory {target.parent}", "Make it first.")
    if options.dry_run:
        shop.say.step(f"would: save Redis' data and {shop.layout.config} to {target}")
        return
    with admin(shop) as redis:
        keys = redis.number("DBSIZE")
        version = redis.info("server")["redis_version"]
        shop.say.step(f"have Redis write a snapshot of {keys} keys")
        with shop.say.patience("writing the snapshot"):
            snapshot(redis)
        name = _setting(redis, "dbfilename")
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=shop.layout.redis_data) as directory:
        # Redis may replace its file at any time; a second name keeps this one.
        kept = Path(directory) / name
        os.link(shop.layout.redis_data / name, kept)
        members = {archive.SNAPSHOT: kept, **_config_files(shop)}
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        contents = archive.Contents(created, manifest.release, version, keys)
        shop.say.step(f"pack {kept.stat().st_size / 1e6:.1f} MB of data and the settings")
        with shop.say.patience("packing"):
            archive.write(target, contents, members)
    size = target.stat().st_size / 1e6
    shop.say.line(f"saved {keys} keys and all settings to {target} ({size:.1f} MB)")
    shop.say.hint("Passwords are in it: it is readable by root alone, and should stay so.")


def snapshot(redis: Resp) -> None:
    """A new dump.rdb, whole, of a moment after this call."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            redis.say("BGSAVE")
            break
        except RedisRefused:  # another one, or a rewrite of the append-only file, is under way
            _pause(deadline)
    while redis.info("persistence")["rdb_bgsave_in_progress"] != "0":
        _pause(deadline)
    if redis.info("persistence")["rdb_last_bgsave_status"] != "ok":
        raise InstallError(
            "Redis could not write its snapshot",
            "See journalctl -u redis.service; is the disk full (df -h /var/lib/sluice), or memory "
            "too short to fork (sysctl vm.overcommit_memory=1)?",
        )


def _pause(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise InstallError(
            f"Redis has not written a snapshot within {TIMEOUT_S:.0f} s",
            "See journalctl -u redis.service, then try again.",
        )
    time.sleep(POLL_S)


def _setting(redis: Resp, name: str) -> str:
    reply = redis.say("CONFIG", "GET", name)
    assert isinstance(reply, list)
    return str(reply[1])


def _config_files(shop: Workshop) -> dict[str, Path]:
    config = shop.layout.config
    return {
        f"{archive.CONFIG}{path.relative_to(config)}": path
        for path in sorted(config.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
