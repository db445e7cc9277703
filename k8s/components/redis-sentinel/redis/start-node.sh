#!/bin/sh
# Becomes one of several redis-servers that replicate: master or replica as the sentinels say.
#
#   start-node.sh CONFIG_DIR EXTRA_DIR PASSWORD_DIR
#
# CONFIG_DIR is that of the base, EXTRA_DIR this folder, PASSWORD_DIR has a file per user. Variables:
# NODE and NODES, the own host:port and all of them, the first one leads at the very beginning;
# SENTINELS, all sentinels; MASTER_NAME.
set -eu
umask 077
config=$1
extra=$2
passwords=$3
data=$(sed -n 's/^dir //p' "$config/redis.conf")
host=${NODE%:*}
port=${NODE##*:}

# Users of the base, and the one by whom servers and sentinels speak to servers.
sh "$config/prepare.sh" "$config" "$passwords" "$data" "$config/users.acl" "$extra/servers.acl"

# Sentinels write the present master into the configuration, so it is a copy.
cp "$config/redis.conf" "$data/redis.conf"
cat >> "$data/redis.conf" << END
tls-port $port
tls-replication yes
masteruser replication
masterauth $(cat "$passwords/replication")
replica-announce-ip $host
replica-announce-port $port
# A master that no replica has confirmed for 10 s takes no writes: after a cut through the network
# there is one that does, the promoted one.
min-replicas-to-write 1
min-replicas-max-lag 10
END

ask() {
  sh "$extra/ask-sentinels.sh" "$config" "$passwords" "$1" || true
}
master=$(ask get-master-addr-by-name)
waited=0
# As the master with an empty disk we would empty the replicas: they are promoted meanwhile. Where
# no sentinel knows one, this is the very beginning.
while [ "$master" = "$NODE" ] && [ ! -e "$data/appendonlydir" ] && [ $waited -lt 60 ] \
  && [ -n "$(ask replicas)" ]; do
  echo "the sentinels take this node for the master, its data is gone: waiting for a promotion"
  sleep 1
  waited=$((waited + 1))
  master=$(ask get-master-addr-by-name)
done
[ -n "$master" ] || master=${NODES%% *}
if [ "$master" != "$NODE" ]; then
  echo "replicaof ${master%:*} ${master##*:}" >> "$data/redis.conf"
fi
exec redis-server "$data/redis.conf"
