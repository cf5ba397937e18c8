{{- define "sluice.fullname" -}}
{{- if contains "sluice" .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-sluice" .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{/* The labels that select the pods of a component: (list . "hub") */}}
{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end -}}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end -}}

{{/* What shape it is: "true" or nothing. */}}
{{- define "sluice.isService" -}}{{ if has .Values.shape (list "memory" "service") }}true{{ end }}{{- end -}}
{{- define "sluice.hasTigerBeetle" -}}
{{ if or (eq .Values.shape "ledger") (and (has .Values.shape (list "service" "hubs")) .Values.tigerbeetle.enabled) }}true{{ end }}
{{- end -}}
{{/* Whether pods of this chart start TigerBeetle or its client, which use io_uring. */}}
{{- define "sluice.hasIoUring" -}}{{ if ne .Values.shape "memory" }}true{{ end }}{{- end -}}
{{- define "sluice.hasTls" -}}
{{ if or (eq .Values.shape "hubs") (and (include "sluice.isService" .) .Values.certificates.enabled) }}true{{ end }}
{{- end -}}

{{- define "sluice.tigerbeetle" -}}{{ include "sluice.fullname" . }}-tigerbeetle{{- end -}}

{{/* --ledger of whoever is connected to TigerBeetle. */}}
{{- define "sluice.ledgerArguments" -}}
{{- if eq .Values.shape "memory" }}
- --ledger=memory
{{- else if .Values.ledgers }}
{{- range .Values.ledgers }}
- --ledger={{ . }}
{{- end }}
{{- else }}
{{- $addresses := list -}}
{{- range until (int .Values.tigerbeetle.replicas) -}}
{{- $addresses = append $addresses (printf "%s-%d.%s.svc:3000" (include "sluice.tigerbeetle" $) . $.Release.Namespace) -}}
{{- end }}
- --ledger=tigerbeetle:{{ int64 .Values.tigerbeetle.cluster }}@{{ join "," $addresses }}
{{- end }}
{{- end -}}

{{/* --ledger of a sidecar: every hub, each by its own name. */}}
{{- define "sluice.hubs" -}}
{{- $hubs := list -}}
{{- range until (int .Values.hubs.replicas) -}}
{{- $hub := printf "%s-hub" (include "sluice.fullname" $) -}}
{{- $hubs = append $hubs (printf "%s-%d.%s.%s.svc:8082" $hub . $hub $.Release.Namespace) -}}
{{- end -}}
hub:{{ join "," $hubs }}
{{- end -}}

{{- define "sluice.leasesSecret" -}}{{ .Values.secrets.leases | default (printf "%s-leases" (include "sluice.fullname" .)) }}{{- end -}}
{{- define "sluice.adminSecret" -}}{{ .Values.secrets.admin | default (printf "%s-admin" (include "sluice.fullname" .)) }}{{- end -}}

{{- define "sluice.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65534
runAsGroup: 65534
fsGroup: 65534
fsGroupChangePolicy: OnRootMismatch
{{- end -}}

{{/* Of a container; the argument is its seccomp profile. */}}
{{- define "sluice.security" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
runAsNonRoot: true
runAsUser: 65534
runAsGroup: 65534
capabilities: {drop: [ALL]}
seccompProfile: {{ . }}
{{- end -}}
{{- define "sluice.ioUring" -}}{type: Localhost, localhostProfile: {{ .Values.seccomp.localhostProfile }}}{{- end -}}

{{/* Where pods run: (list values-of-the-component). */}}
{{- define "sluice.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Over nodes and zones as far as it goes: (list . "hub") */}}
{{- define "sluice.spread" -}}
{{- $root := . -}}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "sluice.selector" $root | nindent 6 }}
{{- end }}
{{- end -}}

{{/* Where limits/ comes from: any number of files of any number of ConfigMaps. Not with subPath: such files never change. */}}
{{- define "sluice.limitsVolume" -}}
- name: sluice-limits
  projected:
    sources:
      - configMap: {name: {{ include "sluice.fullname" . }}-limits}
      {{- range .Values.limitsFrom }}
      - configMap: {name: {{ . }}, optional: true}
      {{- end }}
{{- end -}}

{{/* sluice.yaml of the service. */}}
{{- define "sluice.settings" -}}
{{- $admin := dict "token_file" "/run/secrets/sluice-admin/token" -}}
{{- $settings := dict "admin" $admin
      "leases" (dict "secrets_file" "/run/secrets/sluice-leases/secrets")
      "drain" (dict "wait_seconds" 5)
      "log" (dict "format" "json") -}}
{{- if .Values.certificates.enabled -}}
{{- $_ := set $admin "tls" (dict "cert_file" "/certs/tls.crt" "key_file" "/certs/tls.key") -}}
{{- $_ := set $settings "grpc" (dict "tls" (dict "cert_file" "/certs/tls.crt" "key_file" "/certs/tls.key" "client_ca_file" "/certs/ca.crt")) -}}
{{- end -}}
{{ toYaml (mergeOverwrite $settings (deepCopy .Values.settings)) }}
{{- end -}}

{{/* sluice.yaml of the hubs. No client_ca_file on the admin port: the kubelet asks there, and shows no certificate. */}}
{{- define "sluice.hubSettings" -}}
{{- $tls := dict "cert_file" "/certs/tls.crt" "key_file" "/certs/tls.key" -}}
{{- $settings := dict "hub" (dict "tls" (merge (dict "client_ca_file" "/certs/ca.crt") $tls))
      "admin" (dict "tls" $tls "token_file" "/run/secrets/sluice-admin/token")
      "log" (dict "format" "json") -}}
{{ toYaml (mergeOverwrite $settings (deepCopy .Values.hubs.settings)) }}
{{- end -}}

{{/* sluice.yaml of the sidecars. */}}
{{- define "sluice.sidecarSettings" -}}
{{- $tls := dict "cert_file" "/certs/tls.crt" "key_file" "/certs/tls.key" -}}
{{- $settings := dict "ledger" (dict "tls" (merge (dict "ca_file" "/certs/ca.crt") $tls))
      "admin" (dict "tls" $tls "token_file" "/run/secrets/sluice-admin/token")
      "leases" (dict "secrets_file" "/run/secrets/sluice-leases/secrets")
      "log" (dict "format" "json") -}}
{{ toYaml (mergeOverwrite $settings (deepCopy .Values.settings)) }}
{{- end -}}

{{/* Who signs certificates. */}}
{{- define "sluice.issuerRef" -}}
{{- if .Values.certificates.issuerRef -}}
{{ toYaml .Values.certificates.issuerRef }}
{{- else -}}
name: {{ .Release.Namespace }}-{{ include "sluice.fullname" . }}
kind: ClusterIssuer
{{- end -}}
{{- end -}}
