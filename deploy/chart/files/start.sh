# Starts this replica.
#
# usage: start.sh DIRECTORY, with addresses.sh in it
. "$1/addresses.sh"
addresses
# TigerBeetle handles no signals, and a first process that does so ignores them. The image has tini.
exec ${TINI-tini --} "$tigerbeetle" start ${DEVELOPMENT:-} --addresses="$addresses" --cache-grid="$CACHE_GRID" "$file"
