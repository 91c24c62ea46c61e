#!/bin/sh
# Installs Sluice on this host. See `install.sh --help` and docs/operations.md.
# Finds a Python interpreter and runs deploy/installer.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
checkout=$(dirname -- "$here")

is_supported() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1
}

# --python selects the interpreter of the releases; the installer uses it too.
requested=""
previous=""
for word in "$@"; do
    case "$word" in
        --python=*) requested=${word#--python=} ;;
        *) [ "$previous" = "--python" ] && requested=$word ;;
    esac
    previous=$word
done
if [ -n "$requested" ] && ! is_supported "$requested"; then
    echo "install.sh: $requested is not Python 3.10 or newer" >&2
    echo "Use another --python, or omit the option to search for an interpreter." >&2
    exit 69
fi

python=""
for candidate in "$requested" python3 python3.13 python3.12 python3.11 python3.10; do
    if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 && is_supported "$candidate"; then
        python=$(command -v "$candidate")
        break
    fi
done
if [ -z "$python" ]; then
    echo "install.sh: no Python 3.10 or newer found on this host" >&2
    echo "Install one: apt-get install python3 python3-venv (Debian 12, Ubuntu 22.04 and newer)" >&2
    echo "or select one: install.sh install --python /path/to/python3" >&2
    exit 69
fi

# Not `-m`: that would put the current directory before the checkout.
exec "$python" -B -c '
import runpy, sys
sys.path[0] = sys.argv.pop(1)
runpy.run_module("deploy.installer", run_name="__main__", alter_sys=True)
' "$checkout" "$@"
