#!/bin/sh
# Fills the volume /secrets for compose.yaml; safe to repeat, existing files are kept.
#
# Redis' passwords and certificate, Flower's login, and the kubeconfig: the given one, else one for
# the control plane of the profile. `secrets.sh login` only prints Flower's login.
set -eu
umask 077
[ "${1:-}" != login ] || exec cat /secrets/flower-login
sh /compose-k8s/make-secrets.sh /secrets

if [ -s /given/kubeconfig ]; then
  cp /given/kubeconfig /secrets/kubeconfig
elif [ ! -s /secrets/api.crt ]; then
  openssl req -x509 -newkey rsa:3072 -nodes -days 365 -subj "/CN=controlplane" \
    -addext "subjectAltName=DNS:controlplane,DNS:localhost,IP:127.0.0.1" \
    -keyout /secrets/api.key -out /secrets/api.crt 2> /dev/null
  token=$(openssl rand -hex 16)
  echo "$token,admin,admin,\"system:masters\"" > /secrets/tokens.csv
  cat > /secrets/kubeconfig <<END
apiVersion: v1
kind: Config
clusters:
  - name: local
    cluster:
      server: https://controlplane:6443
      certificate-authority-data: $(base64 < /secrets/api.crt | tr -d '\n')
users:
  - name: admin
    user:
      token: $token
contexts:
  - name: local
    context: {cluster: local, user: admin}
current-context: local
END
fi
# The components' number, and Redis by its group.
chown -R 10001:10001 /secrets
chmod 0750 /secrets
chmod 0440 /secrets/*
