#!/usr/bin/env bash
# Builds the TigerBeetle server from the source inside the crate tigerbeetle-unofficial-sys, with
# the release numbers that the crate's build script gives the client, so that the two always match.
#
# usage: tigerbeetle-server.sh ZIG CRATE_VERSION OUT      e.g. … .tools/bin/zig 0.14.28+0.16.78 ./tigerbeetle
set -euo pipefail

zig=$(realpath "$1")
version=$2
out=$(realpath --canonicalize-missing "$3")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# A throw-away package makes cargo fetch the crate and tell where it lies.
mkdir src
touch src/lib.rs
cat >Cargo.toml <<EOF
[package]
name = "fetch-tigerbeetle"
edition = "2021"
[dependencies]
tigerbeetle-unofficial-sys = "=$version"
EOF
crate=$(cargo metadata --format-version 1 | python3 -c '
import json, os, sys
packages = json.load(sys.stdin)["packages"]
print(*(os.path.dirname(p["manifest_path"]) for p in packages if p["name"] == "tigerbeetle-unofficial-sys"))')

release=$(sed -n 's/^const TIGERBEETLE_RELEASE: &str = "\(.*\)";$/\1/p' "$crate/build.rs")
commit=$(sed -n 's/^const TIGERBEETLE_COMMIT: &str = "\(.*\)";$/\1/p' "$crate/build.rs")
[[ -n $release && -n $commit ]] || {
    echo "tigerbeetle-server: no release and commit found in build.rs of the crate $version" >&2
    exit 1
}

cp -rL "$crate/tigerbeetle" source
chmod -R u+w source
cd source
# With CI set, build.zig would check generated files instead of writing them.
env -u CI ZIG_GLOBAL_CACHE_DIR="$work/zig" "$zig" build install -Drelease \
    "-Dconfig-release=$release" "-Dconfig-release-client-min=$release" "-Dgit-commit=$commit"

mkdir -p "$(dirname "$out")"
cp zig-out/bin/tigerbeetle "$out.tmp"
"$out.tmp" version
mv "$out.tmp" "$out"
