#!/bin/sh
# venv.sh FOLDER: makes a virtual environment with Python 3.10 to 3.13 ($PYTHON, else the newest of these on PATH after python3), or says what is missing.
set -eu
folder=$1
fits='import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'
python=
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
    if command -v "$candidate" >/dev/null && "$candidate" -c "$fits" 2>/dev/null; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
    if [ -n "${PYTHON:-}" ]; then echo "PYTHON=$PYTHON is $("$PYTHON" --version 2>&1 || true): Python 3.10 to 3.13 is needed (MuJoCo 3.3.0 has no other builds)." >&2
    else echo "Python 3.10 to 3.13 is needed (MuJoCo 3.3.0 has no other builds); python3 is $(python3 --version 2>&1 || true). Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; fi
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing $package"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null
    else
        echo "$python can't make virtual environments. On Debian or Ubuntu: sudo apt-get install -y $package" >&2
        exit 1
    fi
fi
echo "making $folder with $("$python" --version)"
"$python" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --upgrade 'pip>=24'
