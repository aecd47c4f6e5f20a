#!/bin/sh
# lerobot.sh FOLDER: an environment with lerobot and this package in FOLDER. lerobot needs Python 3.12 or newer and an older torch than the other environments.
#
# Python is $PYTHON, else the first of 3.12 and 3.13 that is on PATH, that uv knows, or that pyenv has.
set -eu
folder=$1
here=$(dirname "$0")
fits='import sys; sys.exit(not (3, 12) <= sys.version_info[:2] <= (3, 13))'

candidates() {
    if [ -n "${PYTHON:-}" ]; then echo "$PYTHON"; return; fi
    for version in 3.12 3.13; do
        command -v "python$version" || true
        if command -v uv >/dev/null; then uv python find --no-project "$version" 2>/dev/null || true; fi
        for found in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version"*/bin/python; do [ -x "$found" ] && echo "$found"; done
    done
    command -v python3 || true
}

if [ ! -x "$folder/bin/python" ]; then
    python=
    for candidate in $(candidates); do
        if "$candidate" -c "$fits" 2>/dev/null; then python=$candidate; break; fi
    done
    if [ -z "$python" ]; then
        echo "lerobot needs Python 3.12 or 3.13, and none was found on PATH, by uv or by pyenv. Install one (uv python install 3.12, or pyenv install 3.12), or name it:" >&2
        echo "make setup-lerobot PYTHON=/path/to/python3.12" >&2
        exit 1
    fi
    PYTHON=$python "$here/venv.sh" "$folder"
fi
"$here/packages.sh" "$folder/bin/python" lerobot
