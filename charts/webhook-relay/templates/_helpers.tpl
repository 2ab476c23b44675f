{{- define "relay.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* A text that may be long or end with "-", as part of a name: cut, with a hash that keeps it apart from others.
Arguments: text, most. */}}
{{- define "relay.short" -}}
{{- if or (gt (len .text) (int .most)) (hasSuffix "-" .text) -}}
{{ .text | trunc (sub .most 9 | int) | trimSuffix "-" }}-{{ .text | sha256sum | trunc 8 }}
{{- else -}}
{{ .text }}
{{- end -}}
{{- end }}

{{/* Of what belongs to one Deployment. KEDA makes a label of it, so 63 characters at most. Arguments: root, name. */}}
{{- define "relay.fullName" -}}
{{ include "relay.short" (dict "text" (printf "%s-%s" (include "relay.name" .root) .name) "most" 63) }}
{{- end }}

{{- define "relay.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "relay.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "relay.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end -}}
{{- end }}

{{/* Names of topics and groups as relay/domain/topics.py makes them. Arguments: root, role, lane. */}}
{{- define "relay.group" -}}
{{ .root.Values.kafka.topicPrefix }}relay.{{ .role }}
{{- end }}

{{/* The topic of a role, of one lane; empty, for all that its group reads, where no lane is named. */}}
{{- define "relay.topic" -}}
{{- $ofLanes := has .role (list "to-receiver" "from-receiver-async") -}}
{{- if or .lane (not $ofLanes) -}}
{{- $of := dict "from-sender" "from_sender" "to-receiver" (printf "to_receiver_%s" .lane) "from-receiver-async" (printf "pending_from_receiver_%s" .lane) "to-sender" "to_sender" "failed-messages" "failed_messages" "history" "delivery_attempts" -}}
{{ .root.Values.kafka.topicPrefix }}{{ get $of .role }}
{{- end -}}
{{- end }}

{{- define "relay.labels" -}}
app.kubernetes.io/name: webhook-relay
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "relay.commonLabels" -}}
{{ include "relay.labels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* All Deployments: name -> component, args, settings of its own, and the topics whose lag counts. */}}
{{- define "relay.deployments" -}}
{{- range $role, $own := .Values.roles }}
{{- if or $own.enabled (and (eq $role "history") $.Values.postgresql.enabled) }}
{{ $role }}:
  component: {{ $role }}
  args: {{ ternary (list "run" "--roles" "api" "--processes" "1") (list "worker" $role) (eq $role "api") | toJson }}
  roles: {{ list $role | toJson }}
  lane: ""
  own: {{ $own | toJson }}
{{- end }}
{{- end }}
{{- range $name, $own := .Values.perReceiver }}
receiver-{{ include "relay.short" (dict "text" $name "most" 40) }}:
  component: receiver
  args: {{ list "run" "--roles" "to-receiver,from-receiver-async" "--receivers-only" $name "--processes" "1" | toJson }}
  roles: {{ list "to-receiver" "from-receiver-async" | toJson }}
  lane: {{ $name | quote }}
  own: {{ $own | toJson }}
{{- end }}
{{- end }}

{{- define "relay.environment" -}}
- {name: RELAY_KAFKA_BOOTSTRAP_SERVERS, value: {{ required "kafka.bootstrapServers is needed" .Values.kafka.bootstrapServers | quote }}}
- {name: RELAY_KAFKA_REPLICATION_FACTOR, value: {{ .Values.kafka.replicationFactor | quote }}}
- {name: RELAY_TOPIC_PREFIX, value: {{ .Values.kafka.topicPrefix | quote }}}
- {name: RELAY_RECEIVERS_FILE, value: /etc/relay/receivers/receivers.yaml}
{{- range $name, $value := .Values.settings }}
{{- /* Helm reads each number as a float, and writes one million as 1e+06 */ -}}
{{- if and (kindIs "float64" $value) (eq $value (floor $value)) }}{{ $value = int64 $value }}{{ end }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* The variables that a container has of the Secret, each where it is there. Arguments: root, roles (none: of the Job
for topics). What receivers.yaml names is for those that send to receivers and callbacks. */}}
{{- define "relay.secrets" -}}
{{- $names := list "RELAY_REDIS_URL" "RELAY_KAFKA_SASL_PASSWORD" "RELAY_SENTRY_DSN" "SENTRY_DSN" "OTEL_EXPORTER_OTLP_HEADERS" -}}
{{- if .roles }}{{ $names = append $names "RELAY_METRICS_KEY" -}}
{{- /* any of them may be the one that sends notices */ -}}
{{- $names = concat $names (list "RELAY_NOTICE_SLACK_URL" "RELAY_NOTICE_SMTP_URL" "RELAY_NOTICE_PAGERDUTY_KEY" "RELAY_NOTICE_OWNERS" "RELAY_EGRESS_PROXY") }}{{ end -}}
{{- if has "api" .roles }}{{ $names = concat $names (list "RELAY_API_KEY" "RELAY_SESSION_SECRET") }}{{ end -}}
{{- $reads := or (has "api" .roles) (has "history" .roles) -}}
{{- $own := .root.Values.postgresql.enabled -}}
{{- if $reads }}{{ $names = append $names (ternary "POSTGRES_PASSWORD" "RELAY_HISTORY_URL" $own) }}{{ end -}}
{{- if or (has "api" .roles) (has "to-receiver" .roles) }}{{ $names = append $names "RELAY_ANSWER_SECRET" }}{{ end -}}
{{- if or (has "api" .roles) (has "to-receiver" .roles) (has "from-receiver-async" .roles) }}{{ $names = append $names "RELAY_ANSWER_JWK" }}{{ end -}}
{{- $sends := false -}}
{{- range list "api" "to-receiver" "from-receiver-async" "to-sender" }}{{ if has . $.roles }}{{ $sends = true }}{{ end }}{{ end -}}
{{- if $sends -}}
{{- $names = concat $names (list "RELAY_SECRETS_KEY") .root.Values.receiverSecrets -}}
{{- range regexFindAll "\\$\\{[A-Za-z_][A-Za-z0-9_]*" (toJson .root.Values.receivers) -1 }}{{ $names = append $names (trimPrefix "${" .) }}{{ end -}}
{{- end -}}
{{- range uniq $names }}
- name: {{ . }}
  valueFrom: {secretKeyRef: {name: {{ $.root.Values.secretName }}, key: {{ . }}, optional: true}}
{{- end }}
{{- if and $reads $own }}
- name: RELAY_HISTORY_URL
  value: postgresql://relay:$(POSTGRES_PASSWORD)@{{ include "relay.postgresql" .root }}:5432/relay
{{- end }}
{{- end }}

{{- define "relay.postgresql" -}}
{{ include "relay.fullName" (dict "root" . "name" "postgresql") }}
{{- end }}

{{- define "relay.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "relay.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "relay.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "relay.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: receivers, mountPath: /etc/relay/receivers, readOnly: true}
{{- if .Values.filesSecretName }}
- {name: files, mountPath: /etc/relay/files, readOnly: true}
{{- end }}
{{- end }}

{{/* Arguments: root, receivers (the name of a ConfigMap). */}}
{{- define "relay.volumes" -}}
- {name: tmp, emptyDir: {}}
- {name: receivers, configMap: {name: {{ .receivers }}}}
{{- with .root.Values.filesSecretName }}
- {name: files, secret: {secretName: {{ . }}}}
{{- end }}
{{- end }}
