#!/bin/sh
# Becomes a sentinel.
#
#   start-sentinel.sh CONFIG_DIR EXTRA_DIR PASSWORD_DIR DATA_DIR
#
# As start-node.sh; SENTINEL is the own host:port.
set -eu
umask 077
config=$1
extra=$2
passwords=$3
data=$4
master=$(sh "$extra/ask-sentinels.sh" "$config" "$passwords" get-master-addr-by-name || true)
[ -n "$master" ] || master=${NODES%% *}
hash() {
  tr -d '\n' < "$passwords/$1" | sha256sum | cut -d ' ' -f 1
}
grep '^tls-' "$config/redis.conf" | grep -v '^tls-port' > "$data/sentinel.conf"
cat >> "$data/sentinel.conf" << END
port 0
tls-port ${SENTINEL##*:}
tls-replication yes
dir $data
user default reset
user probe on nopass resetkeys resetchannels -@all +ping
user replication on #$(hash replication) allkeys allchannels +@all
user client on #$(hash sentinel) resetkeys resetchannels -@all +ping +hello +auth +client|setname +subscribe +unsubscribe +sentinel|masters +sentinel|master +sentinel|slaves +sentinel|replicas +sentinel|get-master-addr-by-name &+switch-master
# Certificates are for names, and pods change their addresses.
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip ${SENTINEL%:*}
sentinel announce-port ${SENTINEL##*:}
sentinel sentinel-user replication
sentinel sentinel-pass $(cat "$passwords/replication")
sentinel monitor $MASTER_NAME ${master%:*} ${master##*:} 2
sentinel auth-user $MASTER_NAME replication
sentinel auth-pass $MASTER_NAME $(cat "$passwords/replication")
sentinel down-after-milliseconds $MASTER_NAME 3000
sentinel failover-timeout $MASTER_NAME 15000
sentinel parallel-syncs $MASTER_NAME 1
END
exec redis-server "$data/sentinel.conf" --sentinel
