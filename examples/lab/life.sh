#!/usr/bin/env bash
# The life of a training on FPGAs over Ethernet, with simulated ones in place of boards: emit, serve, drive, kill -9, resume,
# export to ONNX, evaluate in onnxruntime.  With boards the second step is to configure them, and drive needs no --host.
#
#     examples/lab/life.sh [FOLDER]      # build/lab, some minutes; LAB_EPOCHS (1), LAB_PORT (17492)
#     LAB_DATA=digits examples/lab/life.sh   # on all digits: half an hour
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-build/lab} epochs=${LAB_EPOCHS:-1} port=${LAB_PORT:-17492} data=${LAB_DATA:-examples/lab/data.toml}
dagtrain=${DAGTRAIN:-.venv/bin/dagtrain}
run=$out/run.npz
step() { local name=$1; shift; printf '\n== %s\n' "$name $*"; "$dagtrain" "$name" "$@" --out "$out"; }

step import examples/digits/digits.onnx --data "$data" --recipe examples/digits/recipe.toml
step place --devices examples/digits/cluster-ethernet.toml
step emit --state-access ports

printf '\n== serve, in the background; it compiles first\n'
"$dagtrain" serve --port "$port" --loss 1e-3 --pcap --out "$out" &
served=$!
trap 'kill -INT $served 2> /dev/null || true; wait $served || true' EXIT
drive=(--host "127.0.0.1:$port" --answer-seconds 900 --epochs "$epochs" --save "$run" --every 2)

printf '\n== drive, killed once it has left a checkpoint\n'
rm -f "$run"
"$dagtrain" drive "${drive[@]}" --out "$out" &
driver=$!
until [ -e "$run" ]; do
    kill -0 $driver $served
    sleep 0.2
done
kill -9 $driver
wait $driver || true

step drive "${drive[@]}" --resume "$run" --compare
kill -INT $served
wait $served
trap - EXIT

step export --weights "$run"
step evaluate "$out/export/digits.onnx" --data "$data"

# what the emulator learns from the same data is the same network, to the byte
cp "$out/export/digits.onnx" "$out/driven.onnx"
step train --epochs "$epochs"
step export --weights "$out/train"
cmp "$out/driven.onnx" "$out/export/digits.onnx"
printf '\nFPGAs and emulator have learnt the same bits: %s\n' "$out/driven.onnx"
