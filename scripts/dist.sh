#!/usr/bin/env bash
# Builds target/dist/sluice as it is shipped: with TigerBeetle, from Cargo.lock alone, and without a trace of where it was built,
# so that the same commit and the same compiler give the same bytes anywhere.
#
#   SLUICE_REVISION=<commit> scripts/dist.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo_home=${CARGO_HOME:-$HOME/.cargo}
rust=$(rustc --print sysroot)
target=${CARGO_TARGET_DIR:-target}
[[ -e .tools/env ]] || scripts/tools.sh build
# shellcheck source=/dev/null
source .tools/env
# rustc takes the last that fits. Not in RUSTFLAGS, which would end at a space in a path.
maps=("$HOME=/home" "$rust=/rust" "$cargo_home=/cargo" "$PWD=/sluice" "$(realpath -m "$target")=/target")
flags=("${maps[@]/#/--remap-path-prefix=}")
CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && echo "${flags[*]}")
export CARGO_ENCODED_RUSTFLAGS
# The C files of ring, where a path is in their assertions.
export CFLAGS="-ffile-prefix-map=$cargo_home=/cargo -ffile-prefix-map=$PWD=/sluice ${CFLAGS-}"
# Dates in what is built, if anything has any.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SLUICE_REVISION=${SLUICE_REVISION:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
export CARGO_INCREMENTAL=0
cargo build --locked --profile dist --features tigerbeetle

for path in "$PWD/src/" "$PWD/target/" "$cargo_home/registry/"; do
    if grep --quiet --fixed-strings "$path" "$target/dist/sluice"; then
        echo "dist: $target/dist/sluice has $path in it, so that another directory gives other bytes" >&2
    fi
done
