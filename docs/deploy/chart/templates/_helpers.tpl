{{- define "duewheel.name" -}}
{{- if contains "duewheel" .Release.Name -}}
{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-duewheel" .Release.Name | trunc 52 | trimSuffix "-" }}
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

{{/* What `init` and `run` share. */}}
{{- define "duewheel.container" -}}
image: {{ include "duewheel.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  - name: DUEWHEEL_CONFIG
    value: /etc/duewheel/duewheel.toml
  - name: DUEWHEEL_SHARD__INDEX
    valueFrom:
      fieldRef:
        fieldPath: metadata.labels['apps.kubernetes.io/pod-index']
  - name: DUEWHEEL_SHARD__COUNT
    value: {{ .Values.shards | quote }}
  - name: DUEWHEEL_STORAGE__DATA_DIR
    value: /var/lib/duewheel/data
  - name: DUEWHEEL_INGEST__SPARK_MASTER
    value: {{ printf "local[%v]" .Values.ingest.tasks }}
  - name: DUEWHEEL_METRICS__HOST
    value: 0.0.0.0
  - name: DUEWHEEL_METRICS__INGEST_PORT
    value: {{ .Values.metrics.ingestPort | quote }}
  - name: DUEWHEEL_METRICS__DEQUEUE_PORT
    value: {{ .Values.metrics.dequeuePort | quote }}
  - name: DUEWHEEL_LOG__FORMAT
    value: json
  {{- with .Values.environment }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumeMounts:
  - name: data
    mountPath: /var/lib/duewheel
  - name: config
    mountPath: /etc/duewheel
    readOnly: true
  - name: tmp
    mountPath: /tmp
  {{- with .Values.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end -}}
