#!/bin/sh
# One way to call docker, podman and buildah (ENGINE names one; else the first that works).
#   engine.sh build IMAGE DOCKERFILE
#   engine.sh run IMAGE FOLDER COMMAND...     runs as the image's user, then copies /workspace/outputs to FOLDER, also after a failure
# From the environment: BASE_IMAGE, TORCH (build arguments), BUILD_FLAGS, RUN_FLAGS (more flags), HF_TOKEN (handed over by name).
set -eu

works() {
    case $1 in
        buildah) command -v buildah >/dev/null ;;
        *) command -v "$1" >/dev/null && "$1" info >/dev/null 2>&1 ;;
    esac
}
engine=${ENGINE:-}
for candidate in docker podman buildah; do
    if [ -z "$engine" ] && works "$candidate"; then engine=$candidate; fi
done
if [ -z "$engine" ]; then echo "no container engine works here: install docker, podman or buildah, and start it" >&2; exit 1; fi

build() {   # image dockerfile
    set -- -t "$1" -f "$2" ${BASE_IMAGE:+--build-arg "BASE_IMAGE=$BASE_IMAGE"} ${TORCH:+--build-arg "TORCH=$TORCH"}
    # BUILD_FLAGS is a list of words
    # shellcheck disable=SC2086
    case $engine in
        docker) if docker buildx version >/dev/null 2>&1; then docker buildx build --load ${BUILD_FLAGS:-} "$@" .; else docker build ${BUILD_FLAGS:-} "$@" .; fi ;;
        podman) podman build --format docker ${BUILD_FLAGS:-} "$@" . ;;
        buildah) buildah bud --format docker --layers ${BUILD_FLAGS:-} "$@" . ;;
    esac
}

run() {     # image folder command...
    image=$1; folder=$2; shift 2
    status=0
    mkdir -p "$folder"
    # shellcheck disable=SC2086
    case $engine in
        buildah)
            container=$(buildah from "$image")
            buildah run ${RUN_FLAGS:-} ${HF_TOKEN:+--env HF_TOKEN} "$container" -- "$@" || status=$?
            cp -R "$(buildah mount "$container")/workspace/outputs/." "$folder"
            buildah umount "$container" >/dev/null
            buildah rm "$container" >/dev/null ;;
        *)
            container=lerobot-nb-$$
            "$engine" run --name "$container" --shm-size 1g ${RUN_FLAGS:-} ${HF_TOKEN:+--env HF_TOKEN} "$image" "$@" || status=$?
            "$engine" cp "$container:/workspace/outputs/." "$folder"
            "$engine" rm "$container" >/dev/null ;;
    esac
    return "$status"
}

action=$1; shift
case $action in
    build) build "$@" ;;
    run) run "$@" ;;
    *) echo "engine.sh: unknown action $action" >&2; exit 1 ;;
esac
