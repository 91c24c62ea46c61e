"""`uninstall`: everything goes but the data; with `--purge` the data too."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.installer import foreign, units, user_steps
from deploy.installer.consent import confirm
from deploy.installer.errors import Unsuitable
from deploy.installer.file_steps import Remove
from deploy.installer.install import Workshop
from deploy.installer.layout import SOCKET_UNIT, WORKER_UNITS, enabled
from deploy.installer.manifest import Manifest
from deploy.installer.options import Options
from deploy.installer.steps import Step, apply_all, show_all


@dataclass
class StopUnits(Step):
    """Stop and disable all of ours; the socket first, so that nobody calls again."""

    shop: Workshop

    def pending(self) -> str | None:
        """Some run, or would at boot."""
        systemd = self.shop.systemd
        if any(systemd.is_active(unit) or systemd.is_enabled(unit) for unit in _names(self.shop)):
            return "stop and disable our units (jobs that run get time to finish)"
        return None

    def apply(self) -> None:
        """Stop, then disable."""
        names = _names(self.shop)
        with self.shop.say.patience("waiting for running jobs"):
            socket = [name for name in names if name == SOCKET_UNIT]
            self.shop.systemd.stop([*socket, *names[::-1]])
        self.shop.systemd.disable(names)


@dataclass
class Reload(Step):
    """systemd forgets our units."""

    shop: Workshop
    due: bool

    def pending(self) -> str | None:
        """Only where there were some."""
        return "have systemd read its units anew" if self.due and self.shop.host.is_live else None

    def apply(self) -> None:
        """Reload, and forget failures."""
        self.shop.systemd.reload()
        self.shop.systemd.forget_failures()


def uninstall(shop: Workshop, options: Options) -> None:
    """Take everything away that `install` brought."""
    layout = shop.layout
    manifest = Manifest.load(layout.manifest)
    there = manifest is not None or any(
        path.exists()
        for path in (layout.config, layout.gateway_home, layout.worker_home, layout.model_home)
    )
    if not there and not (options.purge and layout.state.exists()):
        raise Unsuitable("nothing is installed here", "There is nothing to do.")
    known = manifest or Manifest()
    steps: list[Step] = [StopUnits(shop)]
    for name in (path.name for path in units.unit_sources()):
        if _is_ours(shop, name):
            steps += [Remove(layout.units / name), Remove(layout.units / f"{name}.d")]
    for drop_ins in layout.units.glob(f"{WORKER_UNITS}.d"):
        steps.append(Remove(drop_ins))
    steps += [
        Reload(shop, there),
        Remove(layout.command),
        Remove(layout.gateway_home),
        *_worker_home(shop, options),
        Remove(layout.model_home),
        foreign.ComeBack(shop.host, known.foreign_redis_enabled, known.foreign_redis_active),
        Remove(layout.config, "settings and passwords"),
        Remove(layout.socket.parent),
        *_logs(shop, options),
    ]
    if options.purge:
        steps.append(Remove(layout.state, "all jobs"))
    steps += _images(shop, options)
    steps += user_steps.remove_users(shop.host)
    if options.dry_run:
        count = show_all(steps, shop.say)
        shop.say.line(f"{count} changes; nothing was done")
        return
    if options.purge:
        what = (
            f"All jobs in {layout.redis_data} and images in {layout.images} will be gone for good."
        )
        confirm(options, what, shop.say)
    apply_all(steps, shop.say)
    if layout.redis_data.exists():
        shop.say.line(f"uninstalled; the jobs are left in {layout.redis_data}")
        shop.say.hint("The next `install` takes them up again; --purge would remove them.")
    else:
        shop.say.line("uninstalled; nothing is left")


def _logs(shop: Workshop, options: Options) -> list[Step]:
    """Webhooks that were given up stay, if there are any: nobody else may have them."""
    logs = shop.layout.logs
    if options.purge or (logs.is_dir() and not any(logs.iterdir())):
        return [Remove(logs, "webhooks that were given up")]
    return []


def _images(shop: Workshop, options: Options) -> list[Step]:
    """Images stay, if there are any, with the records of them that the jobs' data has."""
    images = shop.layout.images
    files = (path for path in images.rglob("*") if path.is_file())
    # (A store's id, which is hidden, is worth nothing without images.)
    if options.purge or all(path.name.startswith(".") for path in files):
        return [Remove(images, "all images")]
    shop.say.hint(f"images in {images} are left alone (--purge would remove them)")
    return []


def _worker_home(shop: Workshop, options: Options) -> list[Step]:
    """All of it, except handlers that somebody wrote."""
    home, handlers = shop.layout.worker_home, shop.layout.handlers
    if options.purge or not handlers.is_dir() or not any(handlers.iterdir()):
        return [Remove(home)]
    shop.say.hint(f"your handlers in {handlers} are left alone (--purge would remove them)")
    return [Remove(path) for path in sorted(home.iterdir()) if path != handlers]


def _names(shop: Workshop) -> list[str]:
    """Units of ours that are there, in the order of their start.

    Without a file of ours, redis.service is another name of Debian's redis-server.service.
    """
    others = [path.name for path in units.unit_sources() if "@" not in path.name]
    names = [*enabled(False), *(name for name in others if name not in enabled(False))]
    return [name for name in names if _is_ours(shop, name)] + shop.systemd.instances()


def _is_ours(shop: Workshop, name: str) -> bool:
    path = shop.layout.units / name
    return path.is_file() and not path.is_symlink()
