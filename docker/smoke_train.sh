#!/bin/sh
# smoke_train.sh BENCHMARK [papermill options]: a training of one step from one demonstration, with an evaluation inside and one after it,
# in an image or outside. Leaves in outputs/: BENCHMARK_training.ipynb, BENCHMARK_training/ (config.json, log.jsonl, checkpoints/),
# BENCHMARK_training_demonstrations/ (the data set), BENCHMARK_training_unseen/ (the evaluation of the checkpoint)
set -eu
benchmark=$1; shift
mkdir -p outputs
case $benchmark in
    metaworld) set -- -p task reach-v3 "$@" ;;
    libero) set -- -p task libero_object -p task_ids 0 -p action_noise 0.0 "$@" ;;
esac
exec papermill nbs/train.ipynb "outputs/${benchmark}_training.ipynb" -p benchmark "$benchmark" \
    -p steps 1 -p eval_freq 1 -p n_episodes 1 -p n_demonstrations 1 -p output_dir "outputs/${benchmark}_training" "$@"
