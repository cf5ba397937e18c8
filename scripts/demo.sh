#!/usr/bin/env bash
# Envoy, TigerBeetle, Sluice and a model to talk to on loopback, until Ctrl-C. The tour is the section "Through Envoy" of README.md.
#
# usage: demo.sh            starts all of it and prints the tour
#        demo.sh check      starts all of it, types every line of the tour, and fails if an answer isn't the one shown
#        demo.sh plan       prints the commands that it would start, one a line
#
# Other ports: DEMO_PORTS_PLUS=1000 adds that to each. Everything it writes is in target/demo (or DEMO_DIR), new at each start.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

plus=${DEMO_PORTS_PLUS:-0}
envoy=$((10000 + plus)) envoy_admin=$((9901 + plus)) upstream=$((10001 + plus))
grpc=$((8081 + plus)) admin=$((8080 + plus)) tigerbeetle=$((3000 + plus))
dir=${DEMO_DIR:-target/demo}
# Tests bring their own.
sluice_bin=${DEMO_SLUICE:-${CARGO_TARGET_DIR:-target}/release/sluice}
tigerbeetle_bin=${SLUICE_TEST_TIGERBEETLE:-.tools/bin/tigerbeetle}
envoy_bin=${SLUICE_TEST_ENVOY:-.tools/bin/envoy}

# In the order they start. docker-compose.yaml starts the same; a test compares the two.
names=(tigerbeetle sluice upstream envoy)
command_of() {
    case $1 in
    tigerbeetle) echo sh demo/tigerbeetle.sh "$tigerbeetle_bin" "127.0.0.1:$tigerbeetle" "$dir/0_0.tigerbeetle" ;;
    sluice)
        echo "$sluice_bin" serve --config-dir "$dir/config" --state-dir "$dir/state" \
            --grpc "127.0.0.1:$grpc" --admin "127.0.0.1:$admin" --ledger "tigerbeetle:0@127.0.0.1:$tigerbeetle"
        ;;
    upstream) echo python3 demo/upstream.py "127.0.0.1:$upstream" ;;
    envoy) echo "$envoy_bin" -c "$dir/envoy.yaml" --log-level warning --disable-hot-restart ;;
    esac
}

# The tour, with the ports and the directory that are really used.
tour() {
    sed -n '/^## Through Envoy$/,/^## /p' README.md | sed '1d;$d' |
        sed -E "s/(127\.0\.0\.1:)10000\b/\1$envoy/g; s/(127\.0\.0\.1:)8080\b/\1$admin/g; s|target/demo|$dir|g"
}

say() { echo "demo: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

declare -A pids=()
stop() {
    trap - EXIT
    # A second Ctrl-C must not leave half of them running.
    trap '' INT TERM HUP
    local name pid
    # Who calls goes before who is called, so that nothing is lost.
    for name in envoy upstream sluice tigerbeetle; do
        pid=${pids[$name]-}
        [[ -n $pid ]] || continue
        kill -TERM "$pid" 2>/dev/null || continue
        for ((n = 0; n < 100; n++)); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "$pid" 2>/dev/null || true
    done
}

start() {
    local name
    mkdir -p "$dir/log"
    for name in "${names[@]}"; do
        # No spaces in any of them: the commands are this script's own.
        # shellcheck disable=SC2046
        exec_in_background "$name" $(command_of "$name")
    done
}

exec_in_background() {
    local name=$1
    shift
    # In a session of its own, because Ctrl-C goes to everything in the terminal's: each is ended by `stop`, in its order.
    setsid "$@" >"$dir/log/$name" 2>&1 </dev/null &
    pids[$name]=$!
}

is_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
is_ready() { [[ $(curl -s -m 2 -o /dev/null -w '%{http_code}' "$@") == 200 ]]; }

# Waits for a condition; a process that ended meanwhile ends the wait.
until_ready() {
    local what=$1 name
    shift
    for ((n = 0; n < 600; n++)); do
        "$@" && return
        for name in "${names[@]}"; do
            kill -0 "${pids[$name]}" 2>/dev/null || {
                tail -n 20 "$dir/log/$name" >&2
                fail "$name has ended"
            }
        done
        sleep 0.1
    done
    fail "$what is not ready after a minute; the logs are in $dir/log"
}

# What depends on chance or on the clock.
masked() {
    sed -E 's/\r$//; s/^(date|retry-after|retry-after-ms|x-ratelimit-reset|x-envoy-upstream-service-time): .*/\1: …/;
            s/"(loaded_at|failing_since|version)":[0-9]+/"\1":…/g'
}

# Types the lines of the tour that start with `$ `, and compares what comes out with what is shown below them.
check() {
    local line typed='' shown='' inside=0 wrong=0 count=0
    compare() {
        [[ -n $typed ]] || return 0
        local said
        count=$((count + 1))
        said=$(timeout 60 bash -c "$typed" 2>&1 | masked)
        if [[ $said == "$(masked <<<"${shown%$'\n'}")" ]]; then
            say "as shown: $typed"
        else
            wrong=1
            printf '%s\n' "NOT as shown: $typed" "--- shown" "${shown%$'\n'}" "--- said" "$said" "---" >&2
        fi
        typed='' shown=''
    }
    while IFS= read -r line <&4; do
        case $line in
        '```console') inside=1 ;;
        '```')
            compare
            inside=0
            ;;
        '$ make '*) ;;
        '$ '*) if ((inside)); then
            compare
            typed=${line#'$ '}
        fi ;;
        *) if ((inside)); then shown+=$line$'\n'; fi ;;
        esac
    done 4< <(tour)
    ((count > 0)) || fail "README.md shows no tour"
    ((wrong == 0)) || fail "an answer is not the one that README.md shows; the logs are in $dir/log"
    say "all $count answers are as shown"
}

case ${1-} in
plan)
    for name in "${names[@]}"; do echo "$name: $(command_of "$name")"; done
    exit
    ;;
'' | check) ;;
*) fail "usage: demo.sh [check | plan]" ;;
esac

for port in $envoy $envoy_admin $upstream $grpc $admin $tigerbeetle; do
    ! is_open "$port" || fail "port $port is taken; DEMO_PORTS_PLUS=1000 takes others"
done
rm -rf "$dir"
mkdir -p "$dir"
# A copy, so that the tour can edit it.
cp -r demo/config "$dir/config"
sed -E "s/(port_value: )10000\}/\1$envoy}/; s/(port_value: )9901\}/\1$envoy_admin}/;
        s/(port_value: )10001\}/\1$upstream}/; s/(port_value: )8081\}/\1$grpc}/" envoy/llm.yaml >"$dir/envoy.yaml"
if [[ ${1-} == check ]]; then
    # On a busy machine a call that takes too long would let its request pass, and nobody means that.
    sed -i 's/timeout: 1.5s/timeout: 20s/; s/max_interval: 0.7s/max_interval: 20s/' "$dir/envoy.yaml"
    sed -i 's/timeout_ms: 650/timeout_ms: 20000/' "$dir/config/sluice.yaml"
fi

trap stop EXIT
trap 'exit 0' INT
trap 'exit 143' TERM HUP
start
until_ready upstream is_open "$upstream"
until_ready "Sluice with its ledger" is_ready "http://127.0.0.1:$admin/readyz"
until_ready Envoy is_ready "http://127.0.0.1:$envoy_admin/ready"
# And the way through all of them, with a tenant that the tour doesn't need.
until_ready "the way to the upstream" is_ready -H 'x-api-key: carol-key' "http://127.0.0.1:$envoy/"
say "ready after $SECONDS s"

if [[ ${1-} == check ]]; then
    check
else
    tour
    echo "Ctrl-C stops all of it. Limits, to be edited: $dir/config/limits/llm.yaml. Logs: $dir/log"
    # Until one of them ends, which none should.
    wait -n -p ended "${pids[@]}" || true
    for name in "${names[@]}"; do
        [[ ${pids[$name]} != "${ended-}" ]] || fail "$name has ended; the log is $dir/log/$name"
    done
fi
