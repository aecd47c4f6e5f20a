#!/bin/sh
# smoke.sh BENCHMARK [papermill options]: one short evaluation from end to end, in an image or outside. Leaves in outputs/:
#   doctor.txt  BENCHMARK.ipynb  BENCHMARK/ (run.json, episodes.jsonl, eval_info.json, metrics.json, videos/)
# Ends with the status of the first step that failed; what was made until then stays.
set -eu
benchmark=$1; shift
mkdir -p outputs
status=0
lerobot-nb doctor --benchmark "$benchmark" > outputs/doctor.txt 2>&1 || status=$?
cat outputs/doctor.txt
if [ "$status" != 0 ]; then exit "$status"; fi
exec papermill nbs/eval.ipynb "outputs/$benchmark.ipynb" -p benchmark "$benchmark" \
    -p task_ids 0 -p n_episodes 1 -p render all -p output_dir "outputs/$benchmark" "$@"
