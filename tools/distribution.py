"""`make dist`: builds the wheel, the source distribution and the SBOM in `dist/`.

Equal commits give identical files: only files that git tracks are used, in a copy, and their times
are that of the last commit, or SOURCE_DATE_EPOCH. Compression depends on Python's zlib.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import sbom

ROOT = Path(__file__).resolve().parents[1]
EPOCH = "SOURCE_DATE_EPOCH"
#: Files of earlier builds, which are removed.
STALE = ("sluice-*.whl", "sluice-*.tar.gz", "sluice-*.cdx.json")


class BuildError(Exception):
    """The distribution cannot be built; the text says why."""


def main(words: list[str]) -> int:
    target = Path(words[0] if words else "dist").resolve()
    try:
        if has_changes():
            print("note: the files include changes that are not committed", file=sys.stderr)
        epoch = build_time()
        built = [*build(target, epoch), sbom.write(target, epoch)]
    except BuildError as error:
        print(f"make dist: {error}", file=sys.stderr)
        return 1
    for path in built:
        print(os.path.relpath(path))
    return 0


def build(target: Path, epoch: int) -> list[Path]:
    """Build wheel and source distribution; `epoch` is the time of their files in seconds."""
    target.mkdir(parents=True, exist_ok=True)
    for pattern in STALE:
        for path in target.glob(pattern):
            path.unlink()
    with tempfile.TemporaryDirectory() as directory:
        copy_tracked_files(Path(directory))
        return [hatchling(Path(directory), kind, target, epoch) for kind in ("wheel", "sdist")]


def hatchling(project: Path, kind: str, target: Path, epoch: int) -> Path:
    """Build `wheel` or `sdist` of a project directory, without network access."""
    with tempfile.TemporaryDirectory() as directory:
        words = ["build", "--target", kind, "--directory", directory]
        done = subprocess.run(
            [sys.executable, "-m", "hatchling", *words],
            cwd=project,
            env={**os.environ, EPOCH: str(epoch)},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise BuildError(f"hatchling failed: {done.stdout}{done.stderr}".strip())
        [built] = Path(directory).iterdir()
        return Path(shutil.copy(built, target))


def copy_tracked_files(target: Path) -> None:
    """Copy the files and links that git tracks, as they are in the working tree."""
    for name in tracked_files():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def tracked_files() -> list[str]:
    names = _git("ls-files", "-z").split("\0")
    return [name for name in names if name and os.path.lexists(ROOT / name)]


def has_changes() -> bool:
    return bool(_git("status", "--porcelain", "--untracked-files=no"))


def build_time() -> int:
    """SOURCE_DATE_EPOCH, or the time of the last commit."""
    text = os.environ.get(EPOCH) or _git("log", "-1", "--format=%ct").strip()
    if not text.isdecimal():
        raise BuildError(f"{EPOCH} must be a number of seconds, but is {text!r}")
    return int(text)


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        raise BuildError("git is not installed; it lists the files to include") from None
    if done.returncode != 0:
        raise BuildError(f"git {words[0]} failed, run it in a clone: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
