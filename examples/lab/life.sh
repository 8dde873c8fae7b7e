#!/usr/bin/env bash
# The life of a training on FPGAs over Ethernet, with simulated ones in place of boards: emit, serve, drive, kill -9, resume,
# export to ONNX, evaluate in onnxruntime.  With boards the second step is to configure them, and drive needs no --host.
#
#     examples/lab/life.sh [FOLDER]      # build/lab, some minutes; LAB_EPOCHS (1), LAB_PORT (17492), LAB_LOSS (1e-3)
#     LAB_DATA=digits examples/lab/life.sh   # on all digits: half an hour
#     LAB=examples/lab/small examples/lab/life.sh   # two layers on slivers of two boards: a minute
#
# LAB is a folder with another setting of the same steps: setting.sh, which says the variables below.
set -euo pipefail
cd "$(dirname "$0")/../.."
model=examples/digits/digits.onnx recipe=examples/digits/recipe.toml devices=examples/digits/cluster-ethernet.toml
data=examples/lab/data.toml
importing=() placing=() serving=()
# shellcheck disable=SC1091
[ -z "${LAB:-}" ] || . "$LAB/setting.sh"
out=${1:-build/lab} epochs=${LAB_EPOCHS:-1} port=${LAB_PORT:-17492} loss=${LAB_LOSS:-${loss:-1e-3}} data=${LAB_DATA:-$data}
dagtrain=${DAGTRAIN:-.venv/bin/dagtrain}
run=$out/run.npz onnx=$out/export/$(basename "$model")
step() { local name=$1; shift; printf '\n== %s\n' "$name $*"; "$dagtrain" "$name" "$@" --out "$out"; }

step import "$model" --data "$data" --recipe "$recipe" "${importing[@]}"
step place --devices "$devices" "${placing[@]}"
step emit --state-access ports

printf '\n== serve, in the background; it compiles first\n'
"$dagtrain" serve --port "$port" --loss "$loss" --pcap "${serving[@]}" --out "$out" &
served=$!
trap 'kill -INT $served 2> /dev/null || true; wait $served || true' EXIT
drive=(--host "127.0.0.1:$port" --answer-seconds 900 --epochs "$epochs" --save "$run" --every 2)

printf '\n== drive, killed once it has left a checkpoint\n'
rm -f "$run"
"$dagtrain" drive "${drive[@]}" --out "$out" &
driver=$!
until [ -e "$run" ]; do
    kill -0 $driver
    kill -0 $served
    sleep 0.05
done
kill -9 $driver
ended=0
wait $driver || ended=$?
if [ $ended != 137 ]; then
    printf 'drive ended by itself (%s) before it was killed: there is nothing to resume\n' $ended >&2
    exit 1
fi

step drive "${drive[@]}" --resume "$run" --compare
kill -INT $served
wait $served
trap - EXIT

step export --weights "$run"
step evaluate "$onnx" --data "$data"

# what the emulator learns from the same data is the same network, to the byte
cp "$onnx" "$out/driven.onnx"
step train --epochs "$epochs"
step export --weights "$out/train"
cmp "$out/driven.onnx" "$onnx"
printf '\nFPGAs and emulator have learnt the same bits: %s\n' "$out/driven.onnx"
