#!/usr/bin/env bash
# Installs Icarus, Verilator and Yosys through the system's package manager where they are missing; with `tests`, also
# the Chromium in which the report is tested and tshark, which reads captures of the network.
set -euo pipefail

missing=()
command -v iverilog >/dev/null || missing+=(iverilog)
command -v verilator >/dev/null || missing+=(verilator)
command -v yosys >/dev/null || missing+=(yosys)
command -v g++ >/dev/null || missing+=(g++)
if [ "${1:-}" = tests ] && ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null; then
    missing+=(chromium)
fi
if [ "${1:-}" = tests ] && ! command -v tshark >/dev/null; then
    missing+=(tshark)
fi
[ ${#missing[@]} -eq 0 ] && exit 0

give_up() {
    echo "dagtrain needs these system packages: ${missing[*]}. $1" >&2
    echo "Install them by hand (Debian: apt-get install ${missing[*]}) and run the command again." >&2
    exit 1
}

command -v apt-get >/dev/null || give_up "This system has no apt-get."
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || give_up "Installing them needs root, and there is no sudo."
    as_root=(sudo)
fi
echo "Installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq || give_up "The package lists could not be updated."
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq "${missing[@]}" >/dev/null ||
    give_up "The package manager failed."
