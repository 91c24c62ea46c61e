"""Makes a directory unreadable for this process, with the kernel's Landlock.

A child process has the worker's user, so file modes do not keep it from the worker's credentials.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

#: System calls; the numbers are the same on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH: Final = 1
_READ_FILE, _READ_DIRECTORY = 1 << 2, 1 << 3
_PR_SET_NO_NEW_PRIVS: Final = 38
_PROC: Final = "/proc"


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled", ctypes.c_uint64),)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def hide(directory: str) -> bool:
    """Deny reading the directory, what is in it, and other processes in /proc; False if the kernel
    cannot.

    Landlock knows only what is allowed, so everything next to the directory and next to each
    directory above it is allowed. Those above it cannot be listed any more.
    """
    library = ctypes.CDLL(None, use_errno=True)
    rules = _Ruleset(_READ_FILE | _READ_DIRECTORY)
    ruleset = library.syscall(_CREATE_RULESET, ctypes.byref(rules), ctypes.sizeof(rules), 0)
    if ruleset < 0:
        return False
    try:
        hidden = Path(directory).resolve()
        for at in (hidden, *hidden.parents):
            for entry in _entries(at.parent) if at != at.parent else ():
                if entry.name != at.name and entry.path != _PROC:
                    _allow(library, ruleset, entry)
        own = str(os.getpid())
        for entry in _entries(Path(_PROC)):
            if entry.name == own or not entry.name.isdecimal():
                _allow(library, ruleset, entry)
        if library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            return False
        return int(library.syscall(_RESTRICT_SELF, ruleset, 0)) == 0
    finally:
        os.close(ruleset)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    """Without links, whose targets are allowed by themselves; none if it cannot be listed."""
    try:
        return [entry for entry in os.scandir(directory) if not entry.is_symlink()]
    except OSError:
        return []


def _allow(library: ctypes.CDLL, ruleset: int, entry: os.DirEntry[str]) -> None:
    """Entries that cannot be opened stay denied."""
    is_directory = entry.is_dir(follow_symlinks=False)
    try:
        descriptor = os.open(entry.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        allowed = _READ_FILE | (_READ_DIRECTORY if is_directory else 0)
        rule = _PathBeneath(allowed, descriptor)
        library.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)
