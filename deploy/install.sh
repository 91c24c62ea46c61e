#!/bin/sh
# Installs Sluice on this box. `install.sh --help` says how; docs/operations.md says more.
# Finds a Python and leaves the work to deploy/installer.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
checkout=$(dirname -- "$here")

suits() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1
}

# --python names the interpreter of the releases; it will do for the installer too.
wanted=""
previous=""
for word in "$@"; do
    case "$word" in
        --python=*) wanted=${word#--python=} ;;
        *) [ "$previous" = "--python" ] && wanted=$word ;;
    esac
    previous=$word
done
if [ -n "$wanted" ] && ! suits "$wanted"; then
    echo "install.sh: $wanted is no Python 3.10 or newer" >&2
    echo "Give another one to --python, or none: then the box is searched." >&2
    exit 69
fi

python=""
for candidate in "$wanted" python3 python3.13 python3.12 python3.11 python3.10; do
    if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 && suits "$candidate"; then
        python=$(command -v "$candidate")
        break
    fi
done
if [ -z "$python" ]; then
    echo "install.sh: there is no Python 3.10 or newer on this box" >&2
    echo "Install one: apt-get install python3 python3-venv (Debian 12, Ubuntu 22.04 and newer)" >&2
    echo "or name one: install.sh install --python /path/to/python3" >&2
    exit 69
fi

# Not `-m`: that would put the current directory before the checkout.
exec "$python" -B -c '
import runpy, sys
sys.path[0] = sys.argv.pop(1)
runpy.run_module("deploy.installer", run_name="__main__", alter_sys=True)
' "$checkout" "$@"
