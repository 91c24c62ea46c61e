"""What can go wrong, each with its fix and its exit code."""

from __future__ import annotations


class InstallError(Exception):
    """A step failed. What was done before it has been taken back."""

    exit_code = 1

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


class Missing(InstallError):
    """Something that we need is not there, or too old (sysexits.h EX_UNAVAILABLE)."""

    exit_code = 69


class Unhealthy(InstallError):
    """Installed, but it does not work (EX_SOFTWARE); an upgrade was rolled back."""

    exit_code = 70


class NotAllowed(InstallError):
    """Only root may do this (EX_NOPERM)."""

    exit_code = 77


class Unsuitable(InstallError):
    """An option or something on this box does not fit; a person must decide (EX_CONFIG)."""

    exit_code = 78
