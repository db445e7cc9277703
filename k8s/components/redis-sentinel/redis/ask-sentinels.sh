#!/bin/sh
# Prints what the first sentinel that knows something says, its lines joined by ':'; nothing if none
# does.
#
#   ask-sentinels.sh CONFIG_DIR PASSWORD_DIR get-master-addr-by-name|replicas
set -eu
ca=$(sed -n 's/^tls-ca-cert-file //p' "$1/redis.conf")
for sentinel in $SENTINELS; do
  found=$(REDISCLI_AUTH=$(cat "$2/sentinel") timeout 3 redis-cli --tls --cacert "$ca" \
    --no-auth-warning --user client -h "${sentinel%:*}" -p "${sentinel##*:}" \
    sentinel "$3" "$MASTER_NAME" 2> /dev/null | tr '\n' ':' || true)
  case $found in
    ERR* | NOAUTH* | WRONGPASS* | NOPERM* | Could* | :* | "") ;;
    *) echo "${found%:}"; exit 0 ;;
  esac
done
