#!/bin/sh
# smoke.sh BENCHMARK: one short evaluation, checked from end to end. Runs inside an image and outside alike; leaves in outputs/:
#   doctor.txt BENCHMARK.ipynb BENCHMARK/ (run.json, episodes.jsonl, eval_info.json, metrics.json, videos/)
# Ends with the status of the first step that failed; what was made until then stays.
set -eu
benchmark=$1; shift
mkdir -p outputs
run=outputs/$benchmark

# sh has no pipefail: the report goes to a file first
status=0
lerobot-nb doctor --benchmark "$benchmark" > outputs/doctor.txt 2>&1 || status=$?
cat outputs/doctor.txt
if [ "$status" != 0 ]; then exit "$status"; fi

papermill nbs/eval.ipynb "outputs/$benchmark.ipynb" --log-output \
    -p benchmark "$benchmark" -p n_episodes 1 -p render all -p output_dir "$run" "$@" || status=$?
python3 -m lerobot_nb.results.metrics --artifacts-dir "$run" --env "$benchmark" --task smoke --policy expert --allow-missing
exit "$status"
