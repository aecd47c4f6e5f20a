#!/bin/sh
# Collects metrics.json of earlier runs of the benchmark workflow, for the dashboard: metrics_history.sh FOLDER
# Needs gh (GitHub's command line) and GH_TOKEN, which may read actions. GH_REPO: owner/name. RUNS: how many runs (default 20).
set -eu
folder=${1:?give the folder for the files}
mkdir -p "$folder"
gh run list --workflow benchmark_tests.yml --branch main --limit "${RUNS:-20}" --json databaseId,createdAt --jq '.[] | "\(.databaseId) \(.createdAt)"' > "$folder/runs.txt"
while read -r run created; do
    # a run that left no metrics, or whose artifacts have expired
    gh run download "$run" --pattern 'metrics-*' --dir "$folder/${created%%T*}_$run" </dev/null || echo "run $run of $created has no metrics" >&2
done < "$folder/runs.txt"
