#!/bin/sh
# Writes users.acl with the hashes of the passwords, and loads functions.lua once Redis answers.
#
#   prepare.sh CONFIG_DIR PASSWORD_DIR DATA_DIR ACL_FILE...
#
# PASSWORD_DIR has one file per component, for its users of users.acl, and a file worker.DRIVER for
# every driver whose workers have users of their own; a changed password needs a new start. Of several lines of a file
# each is a password: clients use the first one, so the two sides need not change at one moment.
set -eu
umask 077
config=$1
passwords=$2
data=$3
shift 3
hash() {
  tr -d '\n' | sha256sum | cut -d ' ' -f 1
}
hashes() { # of a file's lines, as Redis takes them
  between=
  while read -r line || [ -n "$line" ]; do
    [ -n "$line" ] || continue
    printf '%s#%s' "$between" "$(printf %s "$line" | hash)"
    between=' '
  done < "$1"
}
# Known to this container alone, for as long as it lives.
setup=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
expression="s/@setup@/#$(printf %s "$setup" | hash)/"
for user in watcher worker beat flower operator replication; do
  [ -s "$passwords/$user" ] || continue
  expression="$expression;s/@$user@/$(hashes "$passwords/$user")/"
done
# Redis reads one user per line and does not support comments.
sed -e "$expression" -e '/^#/d' -e '/^$/d' -e '/^user [a-z]*\.@driver@ /d' "$@" > "$data/users.acl"
for file in "$passwords"/worker.*; do
  [ -s "$file" ] || continue
  driver=${file##*/worker.}
  case $driver in
    *[!-.a-zA-Z0-9]*) echo "$file: not a driver's name" >&2; exit 1 ;;
  esac
  sed -n -e "/^user [a-z]*\.@driver@ /{s/@driver@/$driver/g;s/@password@/$(hashes "$file")/;p;}" \
    "$config/users.acl" >> "$data/users.acl"
done
# A replica takes no functions of its own: it has its master's, and loads these once it leads.
(
  until REDISCLI_AUTH=$setup redis-cli -s "$data/redis.sock" --no-auth-warning --user setup \
    -x function load replace < "$config/functions.lua" 2> /dev/null | grep -q '^csifleet_'
  do
    kill -0 "$PPID" || exit 0 # who called this became Redis, and that has ended
    sleep 2
  done
) > /dev/null 2>&1 &
