{{- define "twinwire.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "twinwire.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "twinwire.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "twinwire.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "twinwire.selector" -}}
app.kubernetes.io/name: {{ include "twinwire.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "twinwire.labels" -}}
{{ include "twinwire.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "twinwire.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "twinwire.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "twinwire.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}
{{- end }}

{{- /* Name and number of each listener that is on, the ones for clients first. */}}
{{- define "twinwire.clientPorts" -}}
{{- $found := dict }}
{{- range $key, $name := dict "nats" "nats" "nsq" "nsq" "nsqHttp" "nsq-http" "bulk" "bulk" "console" "console" }}
{{- $number := index $.Values.ports $key | int }}
{{- if and $number (or (ne $key "nsqHttp") (int $.Values.ports.nsq)) }}{{ $_ := set $found $name $number }}{{ end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{- /* The listener that a TCP probe asks. */}}
{{- define "twinwire.probed" -}}
{{- $ports := include "twinwire.clientPorts" . | fromJson }}
{{- if hasKey $ports "nats" }}nats{{ else if hasKey $ports "nsq" }}nsq{{ else }}
{{- fail "ports.nats or ports.nsq must be on" }}
{{- end }}
{{- end }}
