{{- define "antiphon.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "antiphon.fullname" -}}
{{ printf "%s-%s" .Release.Name (include "antiphon.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "antiphon.service" -}}
{{ include "antiphon.fullname" . }}.{{ .Release.Namespace }}
{{- end }}

{{- define "antiphon.hosts" -}}
{{- $service := include "antiphon.service" . }}
{{- $hosts := list (include "antiphon.fullname" .) $service (printf "%s.svc" $service) (printf "%s.svc.cluster.local" $service) }}
{{- if .Values.ingress.enabled }}{{ $hosts = concat $hosts .Values.ingress.hosts }}{{ end }}
{{- if .Values.httpRoute.enabled }}{{ $hosts = concat $hosts .Values.httpRoute.hostnames }}{{ end }}
{{- $hosts | uniq | join "," }}
{{- end }}

{{- define "antiphon.selector" -}}
app.kubernetes.io/name: {{ include "antiphon.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "antiphon.labels" -}}
{{ include "antiphon.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "antiphon.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "antiphon.fullname" .) }}
{{- else }}
{{- .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}
