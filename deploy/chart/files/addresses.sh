# Says which replica this is (`replica`), where its file is (`file`), and the addresses of all (`addresses`). TigerBeetle takes addresses
# and no names, so those of the others are looked up: each has a Service of its own, whose address stays.
#
# In the environment: CLUSTER, REPLICAS, SERVICE, POD_NAME, POD_IP. DATA and TIGERBEETLE are for tests.
set -eu
tigerbeetle=${TIGERBEETLE:-/tigerbeetle}
replica=${POD_NAME##*-}
file=${DATA:-/data}/${CLUSTER}_$replica.tigerbeetle

addresses() {
  i=0
  addresses=
  while [ "$i" -lt "$REPLICAS" ]; do
    address=
    [ "$i" = "$replica" ] && address=$POD_IP
    while [ -z "$address" ]; do
      address=$(getent hosts "$SERVICE-$i" | awk '{ print $1; exit }')
      [ -n "$address" ] || { echo "$SERVICE-$i has no address yet" >&2; sleep 1; }
    done
    case $address in *:*) address="[$address]" ;; esac
    addresses=$addresses${addresses:+,}$address:3000
    i=$((i + 1))
  done
}
