#!/bin/sh
# What both Dockerfiles do, step by step, as root while an image is built. PYTHON of the base: 3.10 to 3.13.
#   image.sh system                    Python and OpenGL (EGL and OSMesa) from the distribution, the user that runs evaluations
#   image.sh dependencies BENCHMARK    virtual environment in /opt/venv with the exact versions of one benchmark
#   image.sh project BENCHMARK         the package itself, and the folder in which evaluations run
set -eu
step=$1
here=$(cd "$(dirname "$0")" && pwd)
venv=/opt/venv
export DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1

case $step in
system)
    apt-get update -qq
    osmesa=$(apt-cache show libosmesa6 >/dev/null 2>&1 && echo libosmesa6 || true)        # newest distributions dropped it
    # shellcheck disable=SC2046
    apt-get install -y -qq --no-install-recommends ca-certificates python3 python3-venv $osmesa $(cat "$here/../requirements/apt-gl.txt") >/dev/null
    [ -n "$osmesa" ] || echo "this distribution has no libosmesa6: EGL only"
    rm -rf /var/lib/apt/lists/* /var/cache/apt/archives /usr/share/doc /usr/share/man
    if ! getent passwd "$USER_ID" >/dev/null; then useradd --create-home --uid "$USER_ID" evaluator; fi
    ;;
dependencies)
    "$here/venv.sh" "$venv"
    # a base with CUDA in it wants torch with CUDA
    TORCH=${TORCH:-$([ -n "${CUDA_VERSION:-}" ] && echo cuda || echo cpu)} "$here/packages.sh" "$venv/bin/python" base "$2"
    # a fifth of the environment is the packages' own tests and torch's C++ headers
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    for name in matplotlib networkx numpy scipy sympy; do find "$packages/$name" -type d -name tests -prune -exec rm -r {} +; done
    rm -rf "$packages/torch/test" "$packages/torch/include"
    if [ "$2" = libero ]; then               # LIBERO's robot is the Panda; the others' meshes are 370 MB
        for name in baxter iiwa jaco kinova3 sawyer ur5e; do rm -rf "$packages/robosuite/models/assets/robots/$name" "$packages/robosuite/models/assets/bullet_data/${name}_description"; done
    fi
    ;;
project)
    source=$(dirname "$(dirname "$here")")
    "$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation --root-user-action=ignore "$source"
    rm -rf "$source/build" "$source"/*.egg-info
    mkdir -p /workspace/outputs
    ln -s "$source/nbs" /workspace/nbs
    chown -R "$USER_ID" /workspace
    ;;
*)
    echo "image.sh: unknown step $step" >&2; exit 1 ;;
esac
