{{- /* The drivers of one mode, without the mode: a list. Takes mode and root. */ -}}
{{- define "csi-fleet.drivers" -}}
{{- $found := list -}}{{- $default := ternary "central" "worker" (eq .root.Values.mode "central") -}}
{{- range $driver := .root.Values.drivers -}}
{{- if eq ($driver.mode | default $default) $.mode }}{{ $found = append $found (omit $driver "mode") }}{{ end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- /* Whether there are central workers: "yes" or nothing. */ -}}
{{- define "csi-fleet.has-central" -}}
{{- if or (eq .Values.mode "central") (include "csi-fleet.drivers" (dict "mode" "central" "root" .) | fromJsonArray) }}yes{{ end -}}
{{- end -}}

{{- /* Labels of every object, as YAML. */ -}}
{{- define "csi-fleet.labels" -}}
{{- $own := dict "app.kubernetes.io/part-of" "csi-fleet" "app.kubernetes.io/managed-by" .Release.Service -}}
{{- toYaml (merge $own .Values.commonLabels) -}}
{{- end -}}

{{- /* The folders whose objects make up this installation. */ -}}
{{- define "csi-fleet.folders" -}}
{{- $folders := list "base" -}}
{{- if include "csi-fleet.has-central" . }}{{ $folders = append $folders "components/central-worker" }}{{ end -}}
{{- range .Values.controllers -}}
{{- if ne . "provisioner" }}{{ $folders = append $folders (printf "components/controller-%s" .) }}{{ end -}}
{{- end -}}
{{- range .Values.features }}{{ $folders = append $folders (printf "components/feature-%s" .) }}{{ end -}}
{{- if .Values.monitoring.enabled }}{{ $folders = append $folders "components/monitoring" }}{{ end -}}
{{- if and .Values.autoscaling.enabled (include "csi-fleet.has-central" .) -}}
{{- $folders = append $folders "components/autoscaling" -}}
{{- end -}}
{{- if and .Values.admissionPolicy.enabled (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail "the admission policy needs Kubernetes 1.30: set admissionPolicy.enabled=false" -}}
{{- end -}}
{{- if .Values.admissionPolicy.enabled }}{{ $folders = append $folders "components/admission-policy" }}{{ end -}}
{{- if .Values.snapshotMetadata.enabled }}{{ $folders = append $folders "components/snapshot-metadata" }}{{ end -}}
{{- if .Values.flower.fleetPage }}{{ $folders = append $folders "components/fleet-page" }}{{ end -}}
{{- if eq .Values.redis.mode "sentinel" }}{{ $folders = append $folders "components/redis-sentinel" }}{{ end -}}
{{- toJson $folders -}}
{{- end -}}

{{- /* All objects of these folders as they are, but for the namespaces: a list. */ -}}
{{- define "csi-fleet.items" -}}
{{- $root := . -}}{{- $items := list -}}
{{- range $folder := include "csi-fleet.folders" . | fromJsonArray -}}
{{- $found := $root.Files.Glob (printf "objects/%s/*.yaml" $folder) -}}
{{- if not $found }}{{ fail (printf "there is no %s: see controllers, features and redis.mode in values.yaml" $folder) }}{{ end -}}
{{- range $path, $_ := $found -}}
{{- if ne (base $path) "kustomization.yaml" -}}
{{- $text := $root.Files.Get $path | replace "\r" "" -}}
{{- /* The objects are written for namespace csi-fleet; its second one holds records. */ -}}
{{- $text = $text | replace "csi-fleet-records" (printf "%s-records" $root.Release.Namespace) -}}
{{- $text = $text | replace ".csi-fleet.svc" (printf ".%s.svc" $root.Release.Namespace) -}}
{{- $text = regexReplaceAll "(?m)namespace: csi-fleet([,}\\s]|$)" $text (printf "namespace: %s${1}" $root.Release.Namespace) -}}
{{- range $document := splitList "\n---\n" $text -}}
{{- $item := fromYaml $document -}}
{{- if $item.kind }}{{ $items = append $items $item }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $items -}}
{{- end -}}

{{- /* Whether an object is left out: "yes" or nothing. Takes item and root. */ -}}
{{- define "csi-fleet.leaves-out" -}}
{{- $kind := .item.kind -}}{{- $name := .item.metadata.name -}}{{- $values := .root.Values -}}
{{- if and (eq $kind "Namespace") (eq $name "csi-fleet") -}}yes
{{- else if and (eq $kind "NetworkPolicy") (not $values.networkPolicies.enabled) -}}yes
{{- else if and (has $name (list "flower" "csi-fleet-flower")) (not $values.flower.enabled) -}}yes
{{- else if and (eq $name "redis") (eq $values.redis.mode "external") -}}yes
{{- else if and (eq $name "redis") (eq $values.redis.mode "sentinel") (has $kind (list "Deployment" "Service")) -}}yes
{{- end -}}
{{- end -}}

{{- define "csi-fleet.redis-url" -}}
{{- if eq .Values.redis.mode "sentinel" -}}
{{- $hosts := list -}}
{{- range $index := until 3 }}{{ $hosts = append $hosts (printf "redis-%d.redis-nodes.%s.svc:26379" $index $.Release.Namespace) }}{{ end -}}
sentinel://{{ join "," $hosts }}/csi-fleet?ssl_ca_certs=/run/csi-fleet-redis/ca/ca.crt
{{- else if eq .Values.redis.mode "external" -}}
{{- $url := required "redis.mode external needs redis.url" .Values.redis.url -}}
{{- $url }}{{ if not (contains "ssl_ca_certs=" $url) }}{{ ternary "&" "?" (contains "?" $url) }}ssl_ca_certs=/run/csi-fleet-redis/ca/ca.crt{{ end -}}
{{- else -}}
rediss://redis:6379/0?ssl_ca_certs=/run/csi-fleet-redis/ca/ca.crt
{{- end -}}
{{- end -}}

{{- /* One workload with the values of its component; changes the item it is given. */ -}}
{{- define "csi-fleet.workload" -}}
{{- $item := .item -}}{{- $root := .root -}}{{- $values := .root.Values -}}
{{- $name := $item.metadata.name -}}
{{- $own := index $values (ternary "snapshotMetadata" $name (eq $name "snapshot-metadata")) | default dict -}}
{{- $pod := $item.spec.template.spec -}}
{{- range $container := concat ($pod.initContainers | default list) $pod.containers -}}
{{- if eq $container.image "csi-fleet" -}}
{{- $_ := set $container "image" (printf "%s:%s%s" $values.image.repository ($values.image.tag | default $root.Chart.AppVersion) (ternary (printf "@%s" $values.image.digest) "" (ne $values.image.digest ""))) -}}
{{- if $values.image.pullPolicy }}{{ $_ := set $container "imagePullPolicy" $values.image.pullPolicy }}{{ end -}}
{{- else if $values.redis.image }}{{ $_ := set $container "image" $values.redis.image }}{{ end -}}
{{- end -}}
{{- $main := first $pod.containers -}}
{{- if has $name (list "watcher" "worker" "beat" "flower") -}}
{{- $_ := set (first $main.env) "value" (include "csi-fleet.redis-url" $root) -}}
{{- $env := $main.env -}}
{{- if and (ne (toJson $values.controllers) (toJson (list "provisioner"))) (ne $name "flower") -}}
{{- $env = append $env (dict "name" "CSI_FLEET_CONTROLLERS" "value" (join "," $values.controllers)) -}}
{{- end -}}
{{- if eq $values.redis.mode "sentinel" -}}
{{- $env = append $env (dict "name" "CSI_FLEET_REDIS_SENTINEL_USERNAME" "value" "client") -}}
{{- $env = append $env (dict "name" "CSI_FLEET_REDIS_SENTINEL_PASSWORD_FILE" "value" "/run/csi-fleet-redis/sentinel/password") -}}
{{- $_ := set $main "volumeMounts" (append $main.volumeMounts (dict "name" "redis-sentinel" "mountPath" "/run/csi-fleet-redis/sentinel" "readOnly" true)) -}}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "redis-sentinel" "secret" (dict "secretName" "redis-password-sentinel" "defaultMode" 288))) -}}
{{- end -}}
{{- range $key, $value := $own.env }}{{ $env = append $env (dict "name" $key "value" (toString $value)) }}{{ end -}}
{{- $_ := set $main "env" $env -}}
{{- if and (eq $name "flower") $own.fleetPage -}}
{{- $_ := set $pod "serviceAccountName" "flower" -}}
{{- $_ := set $main "volumeMounts" (append $main.volumeMounts (dict "name" "api-token" "mountPath" "/var/run/secrets/kubernetes.io/serviceaccount" "readOnly" true)) -}}
{{- $token := dict "serviceAccountToken" (dict "path" "token" "expirationSeconds" 3607) -}}
{{- $authority := dict "configMap" (dict "name" "kube-root-ca.crt" "items" (list (dict "key" "ca.crt" "path" "ca.crt"))) -}}
{{- $place := dict "downwardAPI" (dict "items" (list (dict "path" "namespace" "fieldRef" (dict "fieldPath" "metadata.namespace")))) -}}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "api-token" "projected" (dict "defaultMode" 288 "sources" (list $token $authority $place)))) -}}
{{- end -}}
{{- $args := $main.args -}}
{{- if and (eq $name "worker") (has "capacity" $values.features) -}}
{{- $args = concat $args (list "--enable-capacity" "--capacity-ownerref-level=2") -}}
{{- end -}}
{{- if and (eq $name "worker") $values.claimLabels -}}
{{- $args = append $args (printf "--claim-labels-to-pv=%s" (join "," $values.claimLabels)) -}}
{{- end -}}
{{- $_ := set $main "args" (concat $args ($own.args | default list)) -}}
{{- else if eq $name "snapshot-metadata" -}}
{{- $_ := set $main "args" (concat $main.args ($own.args | default list)) -}}
{{- end -}}
{{- if $own.resources }}{{ $_ := set $main "resources" $own.resources }}{{ end -}}
{{- if hasKey $own "replicas" }}{{ $_ := set $item.spec "replicas" $own.replicas }}{{ end -}}
{{- if and (eq $name "worker") $values.autoscaling.enabled }}{{ $_ := unset $item.spec "replicas" }}{{ end -}}
{{- if $own.nodeSelector }}{{ $_ := set $pod "nodeSelector" $own.nodeSelector }}{{ end -}}
{{- if $own.tolerations }}{{ $_ := set $pod "tolerations" (concat ($pod.tolerations | default list) $own.tolerations) }}{{ end -}}
{{- range $key := list "affinity" "topologySpreadConstraints" "priorityClassName" -}}
{{- if hasKey $own $key }}{{ $_ := set $pod $key (index $own $key) }}{{ end -}}
{{- end -}}
{{- /* Labels that selectors name win over those of the values. */ -}}
{{- $_ := set $item.spec.template.metadata "labels" (merge $item.spec.template.metadata.labels ($own.podLabels | default dict) $values.commonLabels) -}}
{{- $annotations := $own.podAnnotations | default dict -}}
{{- $drivers := include "csi-fleet.drivers" (dict "mode" "worker" "root" $root) | fromJsonArray -}}
{{- if and (eq $name "redis") $drivers -}}
{{- /* Redis reads its users when it starts: another driver restarts it. */ -}}
{{- $names := list -}}
{{- range $drivers }}{{ $names = append $names .name }}{{ end -}}
{{- $annotations = merge (dict "csi-fleet.io/users" (sortAlpha $names | join "," | sha256sum)) $annotations -}}
{{- end -}}
{{- if $annotations }}{{ $_ := set $item.spec.template.metadata "annotations" $annotations }}{{ end -}}
{{- if $values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" $values.imagePullSecrets }}{{ end -}}
{{- range $volume := $pod.volumes -}}
{{- if and (eq $volume.name "redis-ca") (eq $values.tls.source "cert-manager") -}}
{{- $_ := unset $volume "configMap" -}}
{{- $items := list (dict "key" "ca.crt" "path" "ca.crt") -}}
{{- $_ := set $volume "secret" (dict "secretName" "redis-tls" "items" $items "defaultMode" 288) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "csi-fleet.network-policy" -}}
{{- $item := .item -}}{{- $values := .root.Values -}}
{{- if has $item.metadata.name (list "worker-drivers" "snapshot-metadata-drivers") -}}
{{- $_ := set (first (first $item.spec.egress).ports) "port" (int $values.driversPort) -}}
{{- else if and (eq $item.metadata.name "redis-clients") (eq $values.redis.mode "external") -}}
{{- $port := dict "protocol" "TCP" "port" (int $values.redis.port) -}}
{{- $_ := set $item.spec "egress" (list (dict "ports" (list $port))) -}}
{{- else if and (eq $item.metadata.name "redis-clients") (eq $values.redis.mode "sentinel") -}}
{{- $rule := first $item.spec.egress -}}
{{- $_ := set $rule "ports" (append $rule.ports (dict "protocol" "TCP" "port" 26379)) -}}
{{- else if and (eq $item.metadata.name "redis") (eq $values.redis.mode "sentinel") -}}
{{- $rule := first $item.spec.ingress -}}
{{- $_ := set $rule "ports" (append $rule.ports (dict "protocol" "TCP" "port" "sentinel")) -}}
{{- end -}}
{{- end -}}
