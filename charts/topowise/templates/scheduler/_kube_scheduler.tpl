{{/* The containers of mode own beside the service's. */}}

{{- define "topowise.tokenContainer" -}}
{{- $scheduler := .Values.scheduler -}}
name: token
restartPolicy: Always
image: {{ include "topowise.image" (list .Values.image .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command:
  - topowise-scheduler
  - token
  - --account={{ include "topowise.serviceAccountName" (list . "scheduler") }}
  - --directory=/run/topowise/token
{{- with $scheduler.extraEnv }}
env: {{- toYaml . | nindent 2 }}
{{- end }}
startupProbe:
  exec: {command: [test, -s, /run/topowise/token/token]}
  periodSeconds: 1
  timeoutSeconds: 20
  failureThreshold: 300
resources: {{- toYaml $scheduler.token.resources | nindent 2 }}
securityContext: {{- include "topowise.securityContext" $scheduler.securityContext | nindent 2 }}
volumeMounts:
  - {{- include "topowise.tokenMount" (list "kube-scheduler-token") | nindent 4 }}
  - name: service-token
    mountPath: /run/topowise/token
{{- end -}}

{{- define "topowise.kubeSchedulerContainer" -}}
{{- $scheduler := .Values.scheduler -}}
name: kube-scheduler
image: {{ include "topowise.kubeSchedulerImage" . }}
imagePullPolicy: {{ $scheduler.kubeScheduler.image.pullPolicy }}
command:
  - kube-scheduler
  - --config=/etc/topowise/config/kube-scheduler.yaml
  - "--bind-address={{ include "topowise.anyAddress" . }}"
  - --secure-port=10259
  {{- range $scheduler.kubeScheduler.extraArgs }}
  - {{ . }}
  {{- end }}
ports:
  - name: kube-scheduler
    containerPort: 10259
    protocol: TCP
startupProbe:
  httpGet: {path: /healthz, port: kube-scheduler, scheme: HTTPS}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: kube-scheduler, scheme: HTTPS}
  periodSeconds: 10
  timeoutSeconds: 15
  failureThreshold: 8
resources: {{- toYaml $scheduler.kubeScheduler.resources | nindent 2 }}
securityContext: {{- include "topowise.securityContext" (dict) | nindent 2 }}
volumeMounts:
  - name: config
    mountPath: /etc/topowise/config
    readOnly: true
  - {{- include "topowise.tokenMount" (list "kube-scheduler-token") | nindent 4 }}
{{- end -}}
