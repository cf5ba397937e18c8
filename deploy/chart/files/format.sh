# Makes the data file of this replica, at the first start and never again: a replica whose file was lost has promised things that
# a new file knows nothing about, and the cluster could lose what it has committed. Such a one is recovered from the others, when
# somebody says so (tigerbeetle.recover).
#
# usage: format.sh DIRECTORY, with addresses.sh, format-until and recover in it
. "$1/addresses.sh"
[ -e "$file" ] && exit 0
# Under another name until it is whole, in case this is interrupted.
rm -f "$file.new"
if [ "$(cat "$1/recover")" = "$replica" ]; then
  addresses
  "$tigerbeetle" recover ${DEVELOPMENT:-} --cluster="$CLUSTER" --addresses="$addresses" --replica="$replica" \
    --replica-count="$REPLICAS" "$file.new"
elif [ "$(date +%s)" -lt "$(cat "$1/format-until")" ]; then
  "$tigerbeetle" format ${DEVELOPMENT:-} --cluster="$CLUSTER" --replica="$replica" --replica-count="$REPLICAS" "$file.new"
else
  echo "There is no $file, and this is not the first start. It must be recovered, not formatted: docs/operating.md." >&2
  exit 1
fi
mv "$file.new" "$file"
