"""`status`: what is installed, and whether it runs."""

from __future__ import annotations

from deploy.installer import releases
from deploy.installer.errors import InstallError
from deploy.installer.install import Workshop
from deploy.installer.layout import enabled
from deploy.installer.manifest import Manifest
from deploy.installer.model import ENGINE_LINK
from deploy.installer.probe import Gateway


def status(shop: Workshop) -> int:
    """Exit code 0: all of it runs; 3: not installed, or some does not."""
    manifest = Manifest.load(shop.layout.manifest)
    if manifest is None:
        shop.say.line("not installed")
        return 3
    shop.say.line(f"release   {manifest.release}")
    for home in (shop.layout.gateway_home, shop.layout.worker_home):
        kept = sorted(path.name for path in (home / "releases").glob("*"))
        shop.say.line(f"{home}: uses {releases.current(home)}, has {', '.join(kept)}")
    if manifest.model:
        home = shop.layout.model_home
        shop.say.line(f"{home}: uses {releases.current(home, ENGINE_LINK)}")
    shop.say.line(f"redis     {manifest.redis_version} at {manifest.redis_server}")
    shop.say.line(f"listens   {manifest.listen}")
    if not shop.host.is_live:
        return 0
    well = True
    for unit in dict.fromkeys((*enabled(manifest.model), *shop.systemd.workers())):
        state = shop.systemd.state_of(unit)
        expected = state == "active" or not shop.systemd.is_enabled(unit)
        well = well and expected
        shop.say.line(f"{unit:28} {state}{'' if expected else '   ← journalctl -u ' + unit}")
    try:
        Gateway(manifest.listen).ready()
        shop.say.line("readiness ready")
    except InstallError as error:
        well = False
        shop.say.line(f"readiness {error.what}")
    return 0 if well else 3
