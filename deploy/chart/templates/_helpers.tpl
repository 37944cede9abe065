{{/* It has `duewheel`, as the alerts need of a job. */}}
{{- define "duewheel.name" -}}
{{- if contains "duewheel" .Release.Name -}}
{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ .Release.Name | trunc 43 | trimSuffix "-" }}-duewheel
{{- end -}}
{{- end -}}

{{- define "duewheel.selector" -}}
app.kubernetes.io/name: duewheel
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "duewheel.labels" -}}
{{ include "duewheel.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "duewheel.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Settings, of each container. */}}
{{- define "duewheel.settings" -}}
- name: DUEWHEEL_CONFIG
  value: /etc/duewheel/duewheel.toml
- name: DUEWHEEL_METRICS__HOST
  value: 0.0.0.0
- name: DUEWHEEL_LOG__FORMAT
  value: json
{{- end -}}

{{/* The same, of a container of a shard. */}}
{{- define "duewheel.environment" -}}
{{ include "duewheel.settings" . }}
- name: DUEWHEEL_SHARD__INDEX
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['apps.kubernetes.io/pod-index']
# Pods that a reshard has ended read the new number when their containers start again: a rolling
# update would wait for each of them to read its pending timers.
- name: DUEWHEEL_SHARD__COUNT
  valueFrom:
    configMapKeyRef:
      name: {{ include "duewheel.name" . }}
      key: shards
- name: DUEWHEEL_STORAGE__DATA_DIR
  value: /var/lib/duewheel/data
- name: DUEWHEEL_INGEST__SPARK_MASTER
  value: {{ printf "local[%v]" .Values.ingest.tasks }}
- name: DUEWHEEL_METRICS__INGEST_PORT
  value: {{ .Values.metrics.ingestPort | quote }}
- name: DUEWHEEL_METRICS__DEQUEUE_PORT
  value: {{ .Values.metrics.dequeuePort | quote }}
{{- with .Values.environment }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Rights and images of each pod, and its nodes. */}}
{{- define "duewheel.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
automountServiceAccountToken: false
# Variables of services would begin with DUEWHEEL_, as those of settings do.
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Image, mounts but the data's, and rights, of each container. */}}
{{- define "duewheel.image-and-mounts" -}}
image: {{ include "duewheel.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  - name: config
    mountPath: /etc/duewheel
    readOnly: true
  - name: tmp
    mountPath: /tmp
  {{- with .Values.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* What `init` and `run` share. */}}
{{- define "duewheel.container" -}}
env:
  {{- include "duewheel.environment" . | nindent 2 }}
{{ include "duewheel.image-and-mounts" . }}
  - name: data
    mountPath: /var/lib/duewheel
{{- end -}}

{{/* The addresses of `duewheel serve` of all shards. */}}
{{- define "duewheel.servers" -}}
{{- $name := include "duewheel.name" . -}}
{{- range $shard := until (int .Values.shards) -}}
{{ if $shard }},{{ end }}http://{{ $name }}-{{ $shard }}.{{ $name }}:{{ $.Values.page.port }}
{{- end -}}
{{- end -}}

{{/* `duewheel serve`: it reads the files of the shard, so it is in the shard's pod. */}}
{{- define "duewheel.serve" -}}
{{- if not (or .Values.page.readToken.secret .Values.page.openReads) }}
{{- fail "page.readToken.secret: name a Secret, or set page.openReads where a network policy decides who may read" }}
{{- end -}}
{{- if regexMatch `(?m)^[^#\n]*(tls_(cert|key)_file|SERVE__TLS_)` (printf "%s\n%s" .Values.config (toYaml .Values.environment)) }}
{{- fail "serve.tls_cert_file: the probe and the other pods use HTTP; let a proxy in front of the pods have the certificate" }}
{{- end -}}
args: [serve]
env:
  {{- include "duewheel.environment" . | nindent 2 }}
  - name: DUEWHEEL_SERVE__HOST
    value: 0.0.0.0
  - name: DUEWHEEL_SERVE__PORT
    value: {{ .Values.page.port | quote }}
  - name: DUEWHEEL_SERVE__OPEN_READS
    value: {{ .Values.page.openReads | quote }}
  # Not by value: another number of shards would start all pods again, one after the other.
  - name: DUEWHEEL_SERVE__SHARDS
    valueFrom:
      configMapKeyRef:
        name: {{ include "duewheel.name" . }}
        key: servers
        optional: true
  {{- if .Values.page.readToken.secret }}
  - name: DUEWHEEL_SERVE__READ_TOKEN_FILE
    value: /run/secrets/duewheel/read/token
  {{- end }}
  {{- if .Values.page.changeToken.secret }}
  - name: DUEWHEEL_SERVE__TOKEN_FILE
    value: /run/secrets/duewheel/change/token
  {{- end }}
{{ include "duewheel.image-and-mounts" . }}
  # It writes nothing but a pause.
  - name: data
    mountPath: /var/lib/duewheel
    readOnly: {{ not .Values.page.changeToken.secret }}
  {{- if .Values.page.readToken.secret }}
  - name: read-token
    mountPath: /run/secrets/duewheel/read
    readOnly: true
  {{- end }}
  {{- if .Values.page.changeToken.secret }}
  - name: change-token
    mountPath: /run/secrets/duewheel/change
    readOnly: true
  {{- end }}
ports:
  - name: http
    containerPort: {{ .Values.page.port }}
# No readiness probe: a pod without its page still delivers.
livenessProbe:
  httpGet:
    path: /livez
    port: http
    httpHeaders:
      - name: Host
        value: localhost
  periodSeconds: 20
  timeoutSeconds: 5
resources:
  {{- toYaml .Values.page.resources | nindent 2 }}
{{- end -}}
