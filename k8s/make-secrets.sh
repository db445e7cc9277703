#!/bin/sh
# Makes the passwords, the certificate authority and the certificate of Redis, and Flower's login.
#
#   make-secrets.sh DIR                 only files; existing ones are kept, so it is safe to repeat
#   make-secrets.sh DIR NAMESPACE       also prints Secrets and a ConfigMap for kubectl apply -f -
#   make-secrets.sh DIR NAMESPACE DRIVER=ITS_NAMESPACE...
#                                       the same for the workers beside these drivers: each driver
#                                       has a Redis user worker.DRIVER and a records key of its own.
#                                       ITS_NAMESPACE/SECRET names its Secret, by default
#                                       redis-password-worker: of two in one namespace one must
#
# Name all drivers each time, or the Secret redis-passwords loses the others' users.
# Needs openssl. Each component's Secret holds its own password only. Keep DIR/ca.key off the
# cluster; with cert-manager or another authority, replace ca.crt, tls.crt and tls.key. Without
# tls.crt the next run signs a new one, by the same authority as long as ca.key is there.
set -eu
umask 077
usage() {
  echo "$1; usage: make-secrets.sh DIR [NAMESPACE [DRIVER=ITS_NAMESPACE[/SECRET]...]]" >&2
  exit 2
}
[ $# -gt 0 ] || usage "no folder is named"
case $1 in ''|-*) usage "'$1' is no folder" ;; esac
dir=$1
namespace=${2:-}
[ $# -lt 2 ] || shift
shift
for driver in "$@"; do
  case $driver in ?*=?*) ;; *) usage "'$driver' is no DRIVER=ITS_NAMESPACE" ;; esac
done
drivers=$*
secret() { # secret DRIVER=NAMESPACE[/SECRET]
  case $1 in */*) echo "${1#*=}" ;; *) echo "${1#*=}/redis-password-worker" ;; esac
}
twice=$(for driver in $drivers; do secret "$driver"; done | sort | uniq -d)
[ -z "$twice" ] || { echo "two drivers share the Secret $twice: give DRIVER=NAMESPACE/SECRET" >&2; exit 1; }
mkdir -p "$dir"

# `replication` and `sentinel` are for k8s/components/redis-sentinel.
workers=
for driver in $drivers; do workers="$workers worker.${driver%%=*} records-key.${driver%%=*}"; done
for user in watcher worker beat flower operator replication sentinel records-key $workers; do
  [ -s "$dir/$user" ] || openssl rand -hex 32 > "$dir/$user"
done
[ -s "$dir/flower-login" ] || echo "admin:$(openssl rand -hex 16)" > "$dir/flower-login"

if [ ! -s "$dir/tls.crt" ]; then
  names=DNS:redis,DNS:localhost,IP:127.0.0.1
  if [ -n "$namespace" ]; then
    names=$names,DNS:redis.$namespace,DNS:redis.$namespace.svc
    names=$names,DNS:redis.$namespace.svc.cluster.local,DNS:*.redis-nodes.$namespace.svc
  fi
  [ -s "$dir/ca.key" ] && [ -s "$dir/ca.crt" ] \
    || openssl req -x509 -newkey rsa:3072 -nodes -days 3650 \
      -subj "/CN=csi-fleet redis authority" -addext keyUsage=critical,keyCertSign,cRLSign \
      -keyout "$dir/ca.key" -out "$dir/ca.crt" 2> /dev/null
  openssl req -newkey rsa:3072 -nodes -subj "/CN=redis" \
    -keyout "$dir/tls.key" -out "$dir/tls.csr" 2> /dev/null
  printf 'subjectAltName=%s\nkeyUsage=critical,digitalSignature,keyEncipherment\n%s\n%s\n' \
    "$names" "extendedKeyUsage=serverAuth" "authorityKeyIdentifier=keyid" > "$dir/tls.ext"
  openssl x509 -req -days 825 -in "$dir/tls.csr" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" \
    -CAcreateserial -extfile "$dir/tls.ext" -out "$dir/tls.crt" 2> /dev/null
  rm -f "$dir/tls.csr" "$dir/tls.ext" "$dir/ca.srl"
fi
[ -n "$namespace" ] || exit 0

head() { # head KIND NAME
  printf -- '---\napiVersion: v1\nkind: %s\nmetadata:\n  name: %s\n  namespace: %s\n' \
    "$1" "$2" "$namespace"
  printf '  labels:\n    app.kubernetes.io/part-of: csi-fleet\n'
}
data() { # data KEY FILE
  printf '  %s: %s\n' "$1" "$(base64 < "$dir/$2" | tr -d '\n')"
}
for user in watcher worker beat flower sentinel; do
  head Secret "redis-password-$user"
  echo "data:"
  data password "$user"
  # What workers sign their records in Redis with; nobody else has it.
  [ "$user" != worker ] || data records-key records-key
done
head Secret redis-passwords
echo "data:"
for user in watcher worker beat flower operator replication sentinel; do data "$user" "$user"; done
for driver in $drivers; do data "worker.${driver%%=*}" "worker.${driver%%=*}"; done
head Secret redis-tls
echo "data:"
for file in ca.crt tls.crt tls.key; do data "$file" "$file"; done
head Secret flower-login
echo "data:"
data login flower-login
ca() {
  head ConfigMap redis-ca
  echo "binaryData:"
  data ca.crt ca.crt
}
ca
for driver in $drivers; do
  place=$(secret "$driver")
  namespace=${place%%/*}
  head Secret "${place#*/}"
  echo "data:"
  # By it `csi-fleet adopt` knows whose Secret it is.
  printf '  username: %s\n' "$(printf 'worker.%s' "${driver%%=*}" | base64 | tr -d '\n')"
  data password "worker.${driver%%=*}"
  data records-key "records-key.${driver%%=*}"
  ca
done
