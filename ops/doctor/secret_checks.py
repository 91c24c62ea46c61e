"""Secrets: are they where only root and the service can read them?"""

from __future__ import annotations

import re
import stat
from pathlib import Path

from ops.doctor.box import Box
from ops.doctor.finding import Finding, Unable, check, fail, ok, warn
from ops.doctor.settings_checks import read_file, setting_files

CREDENTIALS = "/etc/sluice/credentials"
_SECRET_NAME = re.compile(r"PASSWORD|SECRET|TOKEN|API_?KEY|PRIVATE")
_URL_WITH_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]+@|[?&]password=")
_OTHERS = 0o077


@check(
    "secrets.credentials",
    "only root can read /etc/sluice/credentials",
    "`sudo chown -R root:root /etc/sluice/credentials && sudo chmod 700 /etc/sluice/credentials && "
    "sudo chmod 600 /etc/sluice/credentials/*`",
)
def credentials(box: Box) -> Finding:
    """systemd hands each service its own."""
    directory = box.path(CREDENTIALS)
    try:
        entries = [directory, *sorted(directory.iterdir())]
        loose = [found for path in entries if (found := _too_open(path, box))]
    except FileNotFoundError:
        raise Unable(f"there is no {CREDENTIALS}") from None
    except PermissionError:
        return ok(f"{CREDENTIALS} is closed to this user")
    if not loose:
        return ok(f"{len(entries) - 1} files in {CREDENTIALS}, for root only")
    fix = (
        f"sudo chown -R root:root {CREDENTIALS} && sudo chmod 700 {CREDENTIALS} && sudo chmod 600 "
        f"{CREDENTIALS}/*"
    )
    return fail(", ".join(loose), "other users may read passwords of Redis", fix)


def _too_open(path: Path, box: Box) -> str:
    seen = path.lstat()
    mode = stat.S_IMODE(seen.st_mode)
    if mode & _OTHERS or seen.st_uid != box.owner_uid:
        return f"{path.name} has mode {mode:03o} and owner {seen.st_uid}"
    return ""


@check(
    "secrets.environment",
    "no file of settings holds a password",
    "move it to /etc/sluice/credentials (`LoadCredential=`), then change it: it was readable",
)
def environment(box: Box) -> Finding:
    """`systemctl show` tells everybody what is in them."""
    files = [name for name in setting_files(box) if box.read(name) is not None]
    if not files:
        raise Unable("there is no file of settings in /etc/sluice, or only root may read it")
    found = [
        f"{name} in {file}"
        for file in files
        for name, value in read_file(box, file).items()
        if value and (_SECRET_NAME.search(name) or _URL_WITH_PASSWORD.search(value))
    ]
    if not found:
        return ok(f"no secret in {', '.join(files)}")
    return warn(
        ", ".join(found),
        "variables of a service are no secret: its children inherit them",
        f"put it in {CREDENTIALS}/gateway.redis_url (mode 600), remove the line, and change the "
        "password",
    )


CHECKS = (credentials, environment)
