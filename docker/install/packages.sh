#!/bin/sh
# packages.sh PYTHON NAME...: installs the requirement files NAME.txt (base, metaworld, libero, dev, lerobot, …) with their exact versions.
#
# torch: PyPI's build for Linux carries CUDA, some gigabytes. Where no NVIDIA driver is found the CPU build is taken from
# PyTorch's own index, 200 MB; if that can't be reached, PyPI's. TORCH=cpu or TORCH=cuda decides by hand.
set -eu
python=$1; shift
requirements=$(dirname "$0")/../requirements
install() { "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore "$@"; }

torch=${TORCH:-$(if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then echo cuda; else echo cpu; fi)}
if ! "$python" -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null; then
    file=base
    if grep -q '^torch==' "$requirements/$1.txt"; then file=$1; fi
    pins=$(grep -E '^torch(vision|codec)?==' "$requirements/$file.txt")
    echo "installing" $pins "($torch)"
    # shellcheck disable=SC2086
    case $torch in
        cpu) install --no-deps --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu $pins ;;
        cuda) install $pins ;;
        *) echo "TORCH=$torch is unknown: cpu or cuda" >&2; exit 1 ;;
    esac
    # PyPI's build in place of the CPU's, where that could not be had, doesn't load without the CUDA libraries that it was built with
    if "$python" -c 'import importlib.metadata as m, sys; sys.exit(not any(r.startswith(("nvidia-", "cuda-")) for r in m.requires("torch") or []))'; then
        # shellcheck disable=SC2086
        install $pins
    fi
fi
for name in "$@"; do
    echo "installing the requirements of $name"
    install -r "$requirements/$name.txt"
    if [ -e "$requirements/$name-no-deps.txt" ]; then install --no-deps -r "$requirements/$name-no-deps.txt"; fi
done
