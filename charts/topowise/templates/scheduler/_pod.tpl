{{/* Whether a Deployment of the service is made. */}}
{{- define "topowise.schedulerRuns" -}}
{{- if and .Values.scheduler.enabled (ne .Values.scheduler.mode "static") -}}true{{- end -}}
{{- end -}}

{{/* The account of the service's pods: in mode own that of the kube-scheduler in them. */}}
{{- define "topowise.schedulerPodAccount" -}}
{{- if eq .Values.scheduler.mode "own" -}}
{{- include "topowise.kubeSchedulerAccount" . -}}
{{- else -}}
{{- include "topowise.serviceAccountName" (list . "scheduler") -}}
{{- end -}}
{{- end -}}

{{/* Who the kube-scheduler of mode own is. */}}
{{- define "topowise.kubeSchedulerAccount" -}}
{{- $account := .Values.scheduler.kubeScheduler.serviceAccount -}}
{{- $own := printf "%s-kube-scheduler" (include "topowise.fullname" .) -}}
{{- $account.name | default (ternary $own "default" $account.create) -}}
{{- end -}}

{{- define "topowise.extenderService" -}}
{{- printf "%s-extender" (include "topowise.componentName" (list . "scheduler")) -}}
{{- end -}}

{{- define "topowise.extenderSecret" -}}
{{- $tls := .Values.scheduler.tls -}}
{{- if eq $tls.source "existingSecret" -}}
{{- required "scheduler.tls.existingSecret.name is needed with scheduler.tls.source=existingSecret" $tls.existingSecret.name -}}
{{- else -}}
{{- printf "%s-tls" (include "topowise.extenderService" .) -}}
{{- end -}}
{{- end -}}

{{/* Names the extender's certificate is for: a JSON list. */}}
{{- define "topowise.extenderNames" -}}
{{- $service := include "topowise.extenderService" . -}}
{{- $inside := printf "%s.%s.svc" $service .Release.Namespace -}}
{{- toJson (concat (list $inside $service (printf "%s.%s" $service .Release.Namespace) (printf "%s.cluster.local" $inside)) .Values.scheduler.tls.dnsNames) -}}
{{- end -}}

{{- define "topowise.extenderAddresses" -}}
{{- $fixed := .Values.scheduler.service.clusterIP -}}
{{- toJson (concat (ternary (list $fixed) list (not (empty $fixed))) .Values.scheduler.tls.ipAddresses) -}}
{{- end -}}

{{/* The service's container. */}}
{{- define "topowise.schedulerContainer" -}}
{{- $scheduler := .Values.scheduler -}}
{{- $config := include "topowise.schedulerConfig" . | fromYaml -}}
name: scheduler
image: {{ include "topowise.image" (list .Values.image .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [topowise-scheduler, serve, --config=/etc/topowise/config/scheduler.yaml]
{{- with $scheduler.extraEnv }}
env: {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  {{- if include "topowise.isServing" $config }}
  - name: metrics
    containerPort: {{ include "topowise.servingPort" $config }}
    protocol: TCP
  {{- end }}
  {{- if eq $scheduler.mode "remote" }}
  - name: extender
    containerPort: {{ $config.extender.port }}
    protocol: TCP
  {{- end }}
  {{- with include "topowise.grpcPort" $config }}
  - name: grpc
    containerPort: {{ . }}
    protocol: TCP
  {{- end }}
{{- include "topowise.probes" $config }}
{{- if and (eq $scheduler.mode "own") (include "topowise.isServing" $config) }}
# kube-scheduler starts when everything has been listed once.
startupProbe:
  httpGet: {path: /readyz, port: metrics, scheme: {{ include "topowise.servingScheme" $config | upper }}}
  periodSeconds: 2
  timeoutSeconds: 20
  failureThreshold: 150
{{- end }}
resources: {{- toYaml $scheduler.resources | nindent 2 }}
securityContext: {{- include "topowise.securityContext" $scheduler.securityContext | nindent 2 }}
volumeMounts:
  - name: config
    mountPath: /etc/topowise/config
    readOnly: true
  - {{- include "topowise.tokenMount" (list "service-token") | nindent 4 }}
  {{- if eq $scheduler.mode "remote" }}
  - name: tls
    mountPath: /etc/topowise/tls
    readOnly: true
  {{- end }}
  {{- with $scheduler.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "topowise.schedulerAffinity" -}}
{{- if .Values.scheduler.affinity -}}
{{- toYaml .Values.scheduler.affinity -}}
{{- else -}}
nodeAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 1
      preference:
        matchExpressions:
          - {key: node-role.kubernetes.io/control-plane, operator: Exists}
{{- if eq .Values.scheduler.antiAffinity "hard" }}
podAntiAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {{- include "topowise.selectorLabels" (list . "scheduler") | nindent 10 }}
{{- else if eq .Values.scheduler.antiAffinity "soft" }}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "topowise.selectorLabels" (list . "scheduler") | nindent 12 }}
{{- end }}
{{- end -}}
{{- end -}}


{{/* What the service may do beyond reading, as its configuration needs it: one place for the roles and the policies. */}}
{{- define "topowise.schedulerRights" -}}
{{- $config := include "topowise.schedulerConfig" . | fromYaml -}}
{{- $requeues := dig "requeue" "enabled" true $config -}}
{{- $tells := dig "waitingPods" "tell" false $config -}}
{{- $deletes := dig "refusedPods" "delete" false $config -}}
{{- $preemptor := dig "preemptor" (dict) $config -}}
{{- $preempts := and (dig "enabled" false $preemptor) (not (dig "dryRun" false $preemptor)) -}}
{{- $places := dig "placement" "enabled" false $config -}}
{{- $nominates := or $preempts $places -}}
{{- $scaleUp := dig "scaleUp" (dict) $config -}}
{{- $scales := dig "enabled" false $scaleUp -}}
{{- $claims := dig "resourceClaims" (dict) $config -}}
{{- $reads := dig "enabled" false $claims -}}
bindings: {{ and .Values.scheduler.extender.bind (ne .Values.scheduler.mode "gate") }}
podStatus: {{ or $requeues $tells $nominates $scales }}
scaleUp: {{ $scales }}
placeholderNamespace: {{ dig "namespace" "" $scaleUp | default .Release.Namespace }}
placeholderImage: {{ dig "image" "registry.k8s.io/pause:3.10.1" $scaleUp }}
placeholderClass: {{ dig "priorityClass" "topowise-placeholder" $scaleUp }}
kueue: {{ dig "kueue" "enabled" false $config }}
guard: {{ dig "scaleDownGuard" "enabled" false $config }}
nodeLabels: {{ and $scales (eq (dig "autoscaler" "cluster-autoscaler" $scaleUp) "karpenter") }}
annotations: {{ ternary (list "topowise.io/requeued") list $requeues | toJson }}
statusFields: {{ concat (ternary (list "nominatedNodeName") list $nominates) (ternary (list "conditions") list $tells) | toJson }}
nodes: {{ dig "startupTaint" "enabled" false $config }}
deletions: {{ $deletes }}
placement: {{ $places }}
evictions: {{ $preempts }}
steering: {{ dig "steering" "enabled" false $config }}
claims: {{ $reads }}
drivers: {{ ternary (dig "drivers" list $claims) list $reads | toJson }}
leases: {{ or $config.leaderElection.enabled (eq .Values.scheduler.mode "static") }}
{{- end -}}

{{/*
The volume of a pod's own token, of (list name). Not by automountServiceAccountToken: such a token is requested for 3607
seconds, and for exactly this number the API server grants a year (--service-account-extend-token-expiration).
*/}}
{{- define "topowise.tokenVolume" -}}
name: {{ first . }}
projected:
  defaultMode: 0440
  sources:
    - serviceAccountToken: {path: token, expirationSeconds: 3600}
    - configMap:
        name: kube-root-ca.crt
        items: [{key: ca.crt, path: ca.crt}]
    - downwardAPI:
        items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]
{{- end -}}

{{- define "topowise.tokenMount" -}}
name: {{ first . }}
mountPath: /var/run/secrets/kubernetes.io/serviceaccount
readOnly: true
{{- end -}}


{{/* The Secret with a token that an earlier chart's pods still run with, "" without them or without a cluster to ask. */}}
{{- define "topowise.oldTokenSecret" -}}
{{- $name := include "topowise.componentName" (list . "scheduler") -}}
{{- $volumes := dig "spec" "template" "spec" "volumes" list (lookup "apps/v1" "Deployment" .Release.Namespace $name) -}}
{{- if contains (printf `"secretName":"%s-token"` $name) (toJson $volumes) -}}
{{- printf "%s-token" $name -}}
{{- end -}}
{{- end -}}
