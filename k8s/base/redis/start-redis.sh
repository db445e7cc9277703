#!/bin/sh
# Prepares users and functions, then becomes redis-server.
#
#   start-redis.sh CONFIG_DIR PASSWORD_DIR [redis-server arguments]
set -eu
config=$1
passwords=$2
shift 2
data=$(sed -n 's/^dir //p' "$config/redis.conf")
sh "$config/prepare.sh" "$config" "$passwords" "$data" "$config/users.acl"
exec redis-server "$config/redis.conf" "$@"
