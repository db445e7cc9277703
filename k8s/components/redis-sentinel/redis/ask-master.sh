#!/bin/sh
# Prints host:port of the master as the first sentinel that answers knows it; nothing if none does.
#
#   ask-master.sh CONFIG_DIR PASSWORD_DIR
set -eu
ca=$(sed -n 's/^tls-ca-cert-file //p' "$1/redis.conf")
for sentinel in $SENTINELS; do
  found=$(REDISCLI_AUTH=$(cat "$2/sentinel") timeout 3 redis-cli --tls --cacert "$ca" \
    --no-auth-warning --user client -h "${sentinel%:*}" -p "${sentinel##*:}" \
    sentinel get-master-addr-by-name "$MASTER_NAME" 2> /dev/null | tr '\n' ':' || true)
  case $found in
    ERR* | NOAUTH* | WRONGPASS* | Could* | :* | "") ;;
    *) echo "${found%:}"; exit 0 ;;
  esac
done
