"""`restore FILE`: replaces data and settings by those of a backup and keeps the old data."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from deploy.installer import archive, distro_redis, loading, nofollow, redis_server
from deploy.installer.archive import Contents
from deploy.installer.backup import admin, installed
from deploy.installer.consent import confirm
from deploy.installer.credentials import Credentials
from deploy.installer.errors import InstallError, Unsuitable
from deploy.installer.file_steps import WriteFile
from deploy.installer.install import Context
from deploy.installer.layout import GROUP, REDIS_UNIT, REDIS_USER, SOCKET_UNIT, enabled
from deploy.installer.loading import Loaded
from deploy.installer.manifest import Manifest
from deploy.installer.options import Options
from deploy.installer.plan import Installation
from deploy.installer.redis_server import RedisServer
from deploy.installer.releases import NoBuilder
from deploy.installer.resp import RedisCommandError, RedisUnavailable
from deploy.installer.steps import Applied, Step, apply_all

TIMEOUT_S = 900.0
#: Generated for this host and its Redis; not restored.
_GENERATED = ("manifest.json", "redis.conf", "users.acl")
_OWNED_BY_GROUP = ".env"


def restore(ctx: Context, options: Options) -> None:
    """Verifies the backup first, then stops the units, replaces the data and starts them again."""
    assert options.file is not None
    manifest = installed(ctx)
    server = redis_server.find(Path(manifest.redis_server))
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=ctx.layout.state) as name:
        directory = Path(name)
        ctx.output.step(f"check {options.file}")
        with ctx.output.reminders("checking"):
            contents = archive.unpack(options.file, directory)
        _check_version(contents, server)
        what = f"{contents.keys} keys of {contents.created}, from {contents.redis_release}"
        if options.dry_run:
            ctx.output.step(f"would: replace the current data by {what}")
            return
        confirm(options, f"The current data is moved away and replaced by {what}.", ctx.output)
        _Restore(ctx, manifest, server, contents, directory).run()


def _check_version(contents: Contents, server: RedisServer) -> None:
    written_by = contents.redis_release
    if not server.release.can_read(written_by):
        raise Unsuitable(
            f"the backup is of {written_by}; this host has {server.release}, which cannot read it",
            f"Install a {written_by.product} at least as new, then run `install.sh upgrade`. "
            f"{redis_server.SOURCE_FIX}",
        )


@dataclass
class _Restore:
    """Replaces the data, or restores the previous state if that fails."""

    ctx: Context
    manifest: Manifest
    server: RedisServer
    contents: Contents
    unpacked: Path
    _was_running: list[str] = field(default_factory=list)
    _previous_data: Path | None = None
    _applied: Applied = field(default_factory=Applied)

    def run(self) -> None:
        ctx = self.ctx
        self._stop()
        try:
            self._move_data()
            loaded = self._load()
            self._applied = apply_all(self._settings(), ctx.output)
            ctx.output.step(f"start {REDIS_UNIT}")
            ctx.systemd.start([REDIS_UNIT])
            self._verify(loaded)
        except BaseException:
            self._roll_back()
            raise
        ctx.systemd.start(self._was_running)
        ctx.output.line(
            f"restored {loaded.keys} keys of {self.contents.keys} "
            f"(expired: {self.contents.keys - loaded.keys})"
        )
        ctx.output.hint(
            f"The previous data is in {self._previous_data}; remove it when you no longer need it."
        )

    def _stop(self) -> None:
        systemd, output = self.ctx.systemd, self.ctx.output
        units = list(dict.fromkeys([*enabled(self.manifest.model), *systemd.workers()]))
        self._was_running = [unit for unit in units if systemd.is_active(unit)]
        output.step("stop Sluice's units (running jobs get time to finish)")
        with output.reminders("waiting for running jobs"):
            systemd.stop([SOCKET_UNIT, *(unit for unit in units[::-1] if unit != SOCKET_UNIT)])

    def _move_data(self) -> None:
        data = self.ctx.layout.redis_data
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self._previous_data = data.with_name(f"{data.name}.before-restore-{stamp}")
        self.ctx.output.step(f"move {data} to {self._previous_data}")
        data.rename(self._previous_data)

    def _load(self) -> Loaded:
        host, data = self.ctx.host, self.ctx.layout.redis_data
        data.mkdir(mode=0o700)
        snapshot = data / loading.SNAPSHOT
        shutil.move(self.unpacked / archive.SNAPSHOT, snapshot)
        with nofollow.open_file(snapshot) as file:
            host.give(file.fileno(), REDIS_USER, GROUP)
        with nofollow.open_directory(data) as directory:  # last: from now on it is the server's
            host.give(directory, REDIS_USER, GROUP)
        self.ctx.output.step("load the snapshot and write the append-only file")
        with self.ctx.output.reminders("reading the snapshot"):
            loaded = loading.load(host, self.server.path, data)
        if self.contents.keys and not loaded.keys and not loaded.expired:
            raise InstallError("the snapshot contains no keys", "Use another backup.")
        return loaded

    def _settings(self) -> list[Step]:
        """Steps for the backup's files, and for the Redis files that depend on its passwords."""
        ctx = self.ctx
        root = self.unpacked / archive.CONFIG
        steps: list[Step] = []
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if path.is_file() and name not in _GENERATED:
                secret = name.startswith(f"{ctx.layout.credentials.name}/")
                mode = 0o600 if secret else 0o640 if name.endswith(_OWNED_BY_GROUP) else 0o644
                group = GROUP if mode == 0o640 else "root"
                target = ctx.layout.config / name
                steps.append(
                    WriteFile(
                        ctx.host, target, path.read_text(), mode, "root", group, secret=secret
                    )
                )
        return [*steps, _RedisFiles(ctx, self.manifest, self.server)]

    def _verify(self, loaded: Loaded) -> None:
        """Compares the number of keys; those that have expired meanwhile may be missing."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                with admin(self.ctx) as redis:
                    expired = int(redis.info("stats")["expired_keys"])
                    found = redis.number("DBSIZE")
                break
            except (RedisUnavailable, RedisCommandError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        if not loaded.keys - expired <= found <= loaded.keys:
            raise InstallError(
                f"Redis has {found} keys, but {loaded.keys} were restored",
                "The previous data was put back. Try again, or use another backup.",
            )

    def _roll_back(self) -> None:
        ctx = self.ctx
        ctx.output.step("failed; restoring the previous state")
        ctx.systemd.stop([REDIS_UNIT])
        self._applied.undo(ctx.output)
        if self._previous_data is not None and self._previous_data.exists():
            shutil.rmtree(ctx.layout.redis_data, ignore_errors=True)
            self._previous_data.rename(ctx.layout.redis_data)
        ctx.systemd.start(self._was_running)


@dataclass
class _RedisFiles(Step):
    """Regenerates users.acl and redis.conf from the restored credentials."""

    ctx: Context
    manifest: Manifest
    server: RedisServer
    _applied: Applied = field(default_factory=Applied)

    def pending(self) -> str | None:
        """Always runs; unchanged files are detected one by one."""
        return "update Redis with the restored passwords"

    def apply(self) -> None:
        inactive = distro_redis.DistroRedis(enabled=False, active=False, alias=False)
        credentials = Credentials.load_or_make(self.ctx.layout)
        parts = (self.ctx.host, self.server, credentials, inactive, NoBuilder(), self.manifest)
        self._applied = apply_all(Installation(*parts).redis_files(), self.ctx.output)

    def undo(self) -> None:
        self._applied.undo(self.ctx.output)
