"""`restore FILE`: the data and settings of a backup, with those of now kept aside."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from deploy.installer import archive, foreign, loading, redis_server
from deploy.installer.archive import Contents
from deploy.installer.backup import admin, installed
from deploy.installer.consent import confirm
from deploy.installer.credentials import Credentials
from deploy.installer.errors import InstallError, Unsuitable
from deploy.installer.file_steps import WriteFile
from deploy.installer.install import Workshop
from deploy.installer.layout import GROUP, REDIS_UNIT, REDIS_USER, SOCKET_UNIT, enabled
from deploy.installer.loading import Loaded
from deploy.installer.manifest import Manifest
from deploy.installer.options import Options
from deploy.installer.plan import Installation
from deploy.installer.redis_server import RedisServer
from deploy.installer.releases import Nothing
from deploy.installer.resp import RedisAway, RedisRefused
from deploy.installer.steps import Applied, Step, apply_all

TIMEOUT_S = 900.0
#: Made for the box and its Redis; what the backup has of them belongs to another.
_MADE_HERE = ("manifest.json", "redis.conf", "users.acl")
_OWNED_BY_GROUP = ".env"


def restore(shop: Workshop, options: Options) -> None:
    """Check everything first; then stop, change, start, and look."""
    assert options.file is not None
    manifest = installed(shop)
    server = redis_server.find(Path(manifest.redis_server))
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=shop.layout.state) as name:
        directory = Path(name)
        shop.say.step(f"check {options.file}")
        with shop.say.patience("checking"):
            contents = archive.unpack(options.file, directory)
        _fits(contents, server)
        what = f"{contents.keys} keys of {contents.created}, from Redis {contents.redis_version}"
        if options.dry_run:
            shop.say.step(f"would: replace the data of now by {what}")
            return
        confirm(options, f"The data of now is kept aside and replaced by {what}.", shop.say)
        _Exchange(shop, manifest, server, contents, directory).run()


def _fits(contents: Contents, server: RedisServer) -> None:
    if contents.redis_numbers[:2] > server.version[:2]:
        raise Unsuitable(
            f"the backup is of Redis {contents.redis_version}, and this box has only "
            f"{server.version_text}, which cannot read it",
            f"Install a Redis as new, then run `install.sh upgrade`. {redis_server.SOURCE_FIX}",
        )


@dataclass
class _Exchange:
    """The old data for the new, or everything as it was."""

    shop: Workshop
    manifest: Manifest
    server: RedisServer
    contents: Contents
    unpacked: Path
    _ran: list[str] = field(default_factory=list)
    _aside: Path | None = None
    _applied: Applied = field(default_factory=Applied)

    def run(self) -> None:
        """All of it."""
        shop = self.shop
        self._stop()
        try:
            self._put_aside()
            loaded = self._load()
            self._applied = apply_all(self._settings(), shop.say)
            shop.say.step(f"start {REDIS_UNIT}")
            shop.systemd.start([REDIS_UNIT])
            self._verify(loaded)
        except BaseException:
            self._put_back()
            raise
        shop.systemd.start(self._ran)
        shop.say.line(
            f"restored {loaded.keys} keys of {self.contents.keys} "
            f"(whose time was over: {self.contents.keys - loaded.keys})"
        )
        shop.say.hint(f"The data of before is in {self._aside}; remove it when all is well.")

    def _stop(self) -> None:
        systemd, say = self.shop.systemd, self.shop.say
        units = list(dict.fromkeys([*enabled(self.manifest.model), *systemd.workers()]))
        self._ran = [unit for unit in units if systemd.is_active(unit)]
        say.step("stop our units (jobs that run get time to finish)")
        with say.patience("waiting for running jobs"):
            systemd.stop([SOCKET_UNIT, *(unit for unit in units[::-1] if unit != SOCKET_UNIT)])

    def _put_aside(self) -> None:
        data = self.shop.layout.redis_data
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self._aside = data.with_name(f"{data.name}.before-restore-{stamp}")
        self.shop.say.step(f"move {data} to {self._aside}")
        data.rename(self._aside)

    def _load(self) -> Loaded:
        host, data = self.shop.host, self.shop.layout.redis_data
        data.mkdir(mode=0o700)
        snapshot = data / loading.SNAPSHOT
        shutil.move(self.unpacked / archive.SNAPSHOT, snapshot)
        for path in (data, snapshot):
            host.give(path, REDIS_USER, GROUP)
        self.shop.say.step("have Redis read the snapshot and write its append-only file")
        with self.shop.say.patience("reading the snapshot"):
            loaded = loading.load(host, self.server.path, data)
        if self.contents.keys and not loaded.keys and not loaded.expired:
            raise InstallError("nothing came out of the snapshot", "Take another backup.")
        return loaded

    def _settings(self) -> list[Step]:
        """The backup's files, and what follows from its passwords for this box's Redis."""
        shop = self.shop
        root = self.unpacked / archive.CONFIG
        steps: list[Step] = []
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if path.is_file() and name not in _MADE_HERE:
                secret = name.startswith(f"{shop.layout.credentials.name}/")
                mode = 0o600 if secret else 0o640 if name.endswith(_OWNED_BY_GROUP) else 0o644
                group = GROUP if mode == 0o640 else "root"
                target = shop.layout.config / name
                steps.append(
                    WriteFile(
                        shop.host, target, path.read_text(), mode, "root", group, secret=secret
                    )
                )
        return [*steps, _Derived(shop, self.manifest, self.server)]

    def _verify(self, loaded: Loaded) -> None:
        """As many keys as were read, less those whose time was over meanwhile."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                with admin(self.shop) as redis:
                    expired = int(redis.info("stats")["expired_keys"])
                    found = redis.number("DBSIZE")
                break
            except (RedisAway, RedisRefused):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        if not loaded.keys - expired <= found <= loaded.keys:
            raise InstallError(
                f"Redis has {found} keys, and {loaded.keys} were restored",
                "The data of before is back. Try again, or take another backup.",
            )

    def _put_back(self) -> None:
        shop = self.shop
        shop.say.step("that failed; putting back what was there before")
        shop.systemd.stop([REDIS_UNIT])
        self._applied.undo(shop.say)
        if self._aside is not None and self._aside.exists():
            shutil.rmtree(shop.layout.redis_data, ignore_errors=True)
            self._aside.rename(shop.layout.redis_data)
        shop.systemd.start(self._ran)


@dataclass
class _Derived(Step):
    """users.acl and redis.conf, made anew from the credentials that are there by now."""

    shop: Workshop
    manifest: Manifest
    server: RedisServer
    _applied: Applied = field(default_factory=Applied)

    def pending(self) -> str | None:
        """They are cheap, and compared file by file."""
        return "have Redis know the restored passwords"

    def apply(self) -> None:
        """Make what differs."""
        nobody = foreign.ForeignRedis(enabled=False, active=False, alias=False)
        credentials = Credentials.load_or_make(self.shop.layout)
        parts = (self.shop.host, self.server, credentials, nobody, Nothing(), self.manifest)
        self._applied = apply_all(Installation(*parts).redis_files(), self.shop.say)

    def undo(self) -> None:
        """Those of before."""
        self._applied.undo(self.shop.say)
