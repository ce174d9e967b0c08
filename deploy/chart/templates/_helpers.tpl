{{/* What several templates share. Names begin with the release's; a release name has at most 53
characters, and those of certificates and DNS labels need to stay below 64. */}}
{{- define "tidegate.name" -}}
{{- printf "%s-%s" (.root.Release.Name | trunc 40 | trimSuffix "-") .part -}}
{{- end }}

{{/* Metadata of an object of a part, in the release's namespace. */}}
{{- define "tidegate.metadata" -}}
name: {{ include "tidegate.name" . }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "tidegate.labels" . | nindent 2 }}
{{- end }}

{{- define "tidegate.labels" -}}
app.kubernetes.io/name: tidegate
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "tidegate.image" -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag }}
{{- end -}}
{{- end }}

{{- define "tidegate.secret" -}}
{{- index .root.Values.tls.secrets .role | default (include "tidegate.name" (dict "root" .root "part" .role)) -}}
{{- end }}

{{/* Host of the control server, a name in its certificate. */}}
{{- define "tidegate.control" -}}
{{ include "tidegate.name" (dict "root" . "part" "control") }}.{{ .Release.Namespace }}
{{- end }}

{{/* Pods as Pod Security `restricted` wants them. */}}
{{- define "tidegate.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user | default 10001 }}
runAsGroup: {{ .user | default 10001 }}
fsGroup: {{ .user | default 10001 }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tidegate.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "tidegate.certificateVariables" -}}
- {name: TIDEGATE_TLS_CERT, value: /certs/tls.crt}
- {name: TIDEGATE_TLS_KEY, value: /certs/tls.key}
- {name: TIDEGATE_TLS_CA, value: /certs/ca.crt}
{{- end }}

{{- define "tidegate.podVariable" -}}
- {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
{{- end }}

{{/* Where pods of a part run. */}}
{{- define "tidegate.placement" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Not empty where an autoscaler sets the number of a part's replicas. */}}
{{- define "tidegate.scaled" -}}
{{- $scaling := .root.Values.autoscaling }}
{{- if and (or $scaling.hpa $scaling.keda) (eq $scaling.target.name .part) }}true{{ end }}
{{- end }}

{{/* Over zones and nodes. */}}
{{- define "tidegate.spread" -}}
{{- if .root.Values.zones.spread }}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: {{ ternary "DoNotSchedule" "ScheduleAnyway" .root.Values.zones.strict }}
  labelSelector: {matchLabels: {{ .labels }}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector: {matchLabels: {{ .labels }}}
{{- end }}
{{- end }}

{{/* Labels by which a part's pods are selected, as a flow mapping. */}}
{{- define "tidegate.selector" -}}
{app.kubernetes.io/name: tidegate, app.kubernetes.io/instance: {{ .root.Release.Name }}, app.kubernetes.io/component: {{ .part }}}
{{- end }}

{{/* Each worker has a port of its own, and a gateway of the picker form asks one. */}}
{{- define "tidegate.workers" -}}
{{ ternary .Values.picker.workers 1 (eq .Values.form "edge") }}
{{- end }}

{{/* The fleet file. The address of the picker's Service is written for @PICKER@ in the pod. */}}
{{- define "tidegate.fleet" -}}
{{- $root := . }}
{{- $fleet := deepCopy .Values.fleet }}
{{- range $pool := $fleet.pools }}
{{- range $source := $pool.endpoints_from }}
{{- range $read := list "kubernetes" "inference_pool" }}
{{- with index $source $read }}
{{- if not .namespace }}{{ $_ := set . "namespace" $root.Release.Namespace }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if eq .Values.form "edge" }}
{{- $files := dict "ca" "/certs/ca.crt" "certificate" "/certs/tls.crt" "key" "/certs/tls.key" }}
{{- $addresses := list }}
{{- range $worker := until (include "tidegate.workers" . | int) }}
{{- $addresses = append $addresses (printf "@PICKER@:%d" (add 18001 $worker)) }}
{{- end }}
{{- $made := dict "listener" (dict "address" "0.0.0.0:10000") }}
{{- $_ := set $made "pickers" (dict "addresses" $addresses "tls" (merge (dict "server_name" "picker.tidegate") $files)) }}
{{- $_ := set $made "gateway" (dict "http" (list "127.0.0.1:18020") "grpc" (list "127.0.0.1:18021") "tls" (merge (dict "server_name" "gateway.tidegate") $files)) }}
{{- $fleet = mergeOverwrite $made $fleet }}
{{- end }}
{{- toYaml $fleet }}
{{- end }}

{{/* Namespaces in which a kind of source reads, as a list in JSON. */}}
{{- define "tidegate.namespaces" -}}
{{- $namespace := .root.Release.Namespace }}
{{- $kind := .kind }}
{{- $only := .only | default "" }}
{{- $found := list }}
{{- range $pool := .root.Values.fleet.pools }}
{{- range $source := $pool.endpoints_from }}
{{- with index $source $kind }}
{{- if or (not $only) (index . $only) }}
{{- $found = append $found (.namespace | default $namespace) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- $found | uniq | sortAlpha | toJson -}}
{{- end }}

{{/* The preStop hook of a replica: it waits until nothing is in flight on this pod. Another try is
made while the control server starts. */}}
{{- define "tidegate.drainHook" -}}
lifecycle:
  preStop:
    exec:
      command:
      - sh
      - -c
      - >-
        curl -fsS --connect-timeout 5 --max-time {{ add .seconds 5 }}
        --retry 10 --retry-delay 2 --retry-connrefused --retry-max-time 25
        --cacert /hook/ca.crt --cert /hook/tls.crt --key /hook/tls.key
        "https://{{ include "tidegate.control" .root }}:18080/safe-to-stop?endpoint=$POD_IP&timeout={{ .seconds }}"
{{- end }}
