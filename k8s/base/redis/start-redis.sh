#!/bin/sh
# Puts the hashes of the passwords into the ACL file, then becomes redis-server.
#
#   start-redis.sh CONFIG_DIR PASSWORD_DIR [redis-server arguments]
#
# PASSWORD_DIR has one file per user of users.acl; a changed password needs a new start.
set -eu
umask 077
config=$1
passwords=$2
shift 2
data=$(sed -n 's/^dir //p' "$config/redis.conf")
expression=
for user in watcher worker beat flower operator; do
  hash=$(tr -d '\n' < "$passwords/$user" | sha256sum | cut -d ' ' -f 1)
  expression="$expression;s/@$user@/#$hash/"
done
# Redis reads one user per line and knows no comments.
sed -e "${expression#;}" -e '/^#/d' -e '/^$/d' "$config/users.acl" > "$data/users.acl"
exec redis-server "$config/redis.conf" "$@"
