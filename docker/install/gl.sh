#!/bin/sh
# OpenGL libraries that draw without a screen. Does nothing where they are there, or where MUJOCO_GL names another back end.
# As root on Debian or Ubuntu it installs them; else it prints the line to run and ends with status 1.
set -eu
packages=$(tr '\n' ' ' < "$(dirname "$0")/../requirements/apt-gl.txt")

there() {   # the loader finds the libraries, and EGL knows of a driver (Mesa's or a GPU's)
    "${PYTHON:-python3}" -c 'import ctypes; [ctypes.CDLL(name) for name in ("libEGL.so.1", "libGL.so.1", "libOpenGL.so.0")]' 2>/dev/null \
        && [ -n "$(ls /usr/share/glvnd/egl_vendor.d /etc/glvnd/egl_vendor.d 2>/dev/null | grep '\.json$')" ]
}

case "${MUJOCO_GL:-egl}" in egl) ;; *) exit 0 ;; esac
if [ "$(uname -s)" != Linux ] || there; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing the OpenGL libraries: $packages"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null
    exit 0
fi
echo "The OpenGL libraries that draw without a screen are missing. On Debian or Ubuntu run this line, then the same command again:" >&2
echo "    sudo apt-get install -y $packages" >&2
echo "Elsewhere install Mesa's EGL (libEGL.so.1, libGL.so.1, libOpenGL.so.0). CHECK_GL=0 goes on without pictures." >&2
exit 1
