#!/usr/bin/env bash
# Stands in for Zig (ZIG_PATH) while cargo builds the TigerBeetle client crate. The crate's build
# script asks for `zig build clients:c`, which compiles 14 libraries for 7 platforms (8 minutes)
# of which one is used. This narrows the crate's copy of build.zig to that one library, and keeps
# the result in the cache, keyed by everything that went into it. Any other call goes to Zig as it is.
#
# Run as .tools/bin/zig-narrow, with the real Zig beside it; knows nothing of Sluice.
set -euo pipefail

zig=$(dirname "${BASH_SOURCE[0]}")/zig
[[ "${1-} ${2-}" == "build clients:c" ]] || exec "$zig" "$@"

fail() {
    echo "zig-narrow: $*" >&2
    exit 1
}

target=
for arg in "$@"; do
    if [[ $arg == -Dtarget=* ]]; then target=${arg#-Dtarget=}; fi
done
case $target in
x86_64-linux | aarch64-linux) platform=$target-gnu.2.27 ;;
*) fail "no narrow build for the target '$target', only for x86_64-linux and aarch64-linux with glibc" ;;
esac

cache=${XDG_CACHE_HOME:-$HOME/.cache}/sluice
key=$({
    "$zig" version
    cat "${BASH_SOURCE[0]}"
    printf '%s\n' "$@"
    find -L . -type f -print0 | sort -z | xargs -0 sha256sum
} | sha256sum | cut -c 1-32)
built=$cache/tigerbeetle-client/$key
mkdir -p "$cache/tigerbeetle-client"
exec 9>"$cache/tigerbeetle-client/lock" # two cargo builds at once: the second finds what the first built
flock 9

header=src/clients/c/tb_client.h
library=src/clients/c/lib/$platform/libtb_client.a

if [[ ! -d $built ]]; then
    # The crate mirrors its sources with symlinks into cargo's registry: replace, never edit in place.
    sed '/^fn build_c_client(/,/^}/ {
        s/for (Platform\.all) |platform|/for ([_]Platform{.@"'"$platform"'"}) |platform|/
        s/{ shared_lib, static_lib }) |lib| {/{static_lib}) |lib| {\n            _ = shared_lib;/
    }' build.zig >build.zig.narrow
    [[ $(grep -cF -e '([_]Platform{.@"' -e '{static_lib}) |lib|' build.zig.narrow) == 2 ]] ||
        fail "build.zig is not the one this script knows how to narrow (another TigerBeetle version?):" \
            "adapt scripts/zig-narrow.sh, or set ZIG_PATH to plain Zig and wait for all 14 libraries"
    mv -f build.zig.narrow build.zig

    ZIG_GLOBAL_CACHE_DIR=$PWD/.zig-cache/global "$zig" "$@"
    [[ -f $header && -f $library ]] || fail "zig build succeeded, but $header or $library is missing"

    # Zig's memcpy and the like would be linked into the whole program in place of glibc's, which take fewer
    # instructions: a fifth of those of a decision were spent in them.
    rm -rf objects && mkdir objects
    (cd objects && ar x "../$library" &&
        objcopy -L memcpy -L memmove -L memset -L memcmp -L bcmp compiler_rt.o &&
        rm -f "../$library" && ar rcs "../$library" ./*.o) ||
        fail "ar and objcopy (of binutils, which cc uses too) could not take memcpy out of $library"
    rm -rf objects

    rm -rf "$built.tmp"
    mkdir "$built.tmp"
    cp "$header" "$library" "$built.tmp/"
    mv "$built.tmp" "$built"
    rm -rf .zig-cache zig-out
fi

mkdir -p "$(dirname "$library")"
cp --remove-destination "$built/tb_client.h" "$header"
cp --remove-destination "$built/libtb_client.a" "$library"
