"""Errors of the installer, each with a remedy and an exit code."""

from __future__ import annotations


class InstallError(Exception):
    """A step failed; earlier steps have been undone."""

    exit_code = 1

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


class Missing(InstallError):
    """A requirement is missing or too old (EX_UNAVAILABLE of sysexits.h)."""

    exit_code = 69


class Unhealthy(InstallError):
    """Installed, but the health check failed (EX_SOFTWARE); an upgrade was rolled back."""

    exit_code = 70


class NotAllowed(InstallError):
    """Root permissions are required (EX_NOPERM)."""

    exit_code = 77


class Unsuitable(InstallError):
    """An invalid option, or a conflict on the host that an operator must resolve (EX_CONFIG)."""

    exit_code = 78
