#!/bin/sh
# One TigerBeetle replica on a data file, which is formatted when it isn't there.
#
# usage: tigerbeetle.sh TIGERBEETLE ADDRESS FILE
set -eu
[ -e "$3" ] || "$1" format --cluster=0 --replica=0 --replica-count=1 --development "$3"
# --development: works on file systems without direct I/O, and takes little memory. Not for production.
exec "$1" start --development --addresses="$2" "$3"
