#!/usr/bin/env bash
# Lays out what the image holds beside its base: the program under both names, a configuration to start from, and a directory that
# its user may write. The Dockerfile copies it; a test runs it without Docker.
#
# usage: image-root.sh BINARY ROOT
set -euo pipefail
binary=$(realpath "$1")
root=$2
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p "$root"/{bin,etc,usr/local/bin,var/lib/sluice}
install -m 755 "$binary" "$root/usr/local/bin/sluice"
# Envoy Gateway calls it so.
ln -s /usr/local/bin/sluice "$root/bin/ratelimit"
cp -r config "$root/etc/sluice"
chmod -R u=rwX,go=rX "$root"
[[ $(id -u) != 0 ]] || chown -R 65534:65534 "$root/var/lib/sluice"
find "$root" -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH:-0}" {} +
