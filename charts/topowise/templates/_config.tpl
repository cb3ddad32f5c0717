{{/* The daemons' configurations: what the chart knows, with the values merged over it. */}}

{{- define "topowise.exporterConfig" -}}
{{- $head := dict "apiVersion" "topowise.io/v1alpha1" "kind" "ExporterConfiguration" -}}
{{- $known := dict -}}
{{- if .Values.steering.enabled -}}{{- $_ := set $known "steering" (dict "enabled" true) -}}{{- end -}}
{{- toYaml (mustMergeOverwrite $known (deepCopy .Values.exporter.config) $head) -}}
{{- end -}}

{{- define "topowise.schedulerConfig" -}}
{{- $scheduler := .Values.scheduler -}}
{{- $extender := dict "address" "127.0.0.1" "port" 8080 -}}
{{- if eq $scheduler.mode "remote" -}}
{{- $files := dict "certFile" "/etc/topowise/tls/tls.crt" "keyFile" "/etc/topowise/tls/tls.key" "clientCaFile" "/etc/topowise/tls/ca.crt" -}}
{{- $extender = dict "address" (include "topowise.anyAddress" .) "port" $scheduler.extender.port "tls" $files -}}
{{- end -}}
{{- $election := dict "enabled" (gt (int $scheduler.replicas) 1) -}}
{{- $known := dict "extender" $extender "leaderElection" $election -}}
{{- if .Values.exporter.enabled -}}
{{- $_ := set $known "exporters" (dict "namespace" .Release.Namespace "nodeSelector" (.Values.exporter.nodeSelector | default dict)) -}}
{{- end -}}
{{- if .Values.steering.enabled -}}
{{- $_ := set $known "steering" (dict "enabled" true) -}}
{{- end -}}
{{- $fixed := dict "apiVersion" "topowise.io/v1alpha1" "kind" "SchedulerConfiguration" -}}
{{- if eq $scheduler.mode "gate" -}}
{{/* No kube-scheduler asks this service, so it has refused no pod that could be requeued. */}}
{{- $_ := merge $fixed (dict "placement" (dict "enabled" true) "requeue" (dict "enabled" false)) -}}
{{- end -}}
{{- toYaml (mustMergeOverwrite $known (deepCopy $scheduler.config) $fixed) -}}
{{- end -}}

{{/* The entry of `extenders` for (dict "root" $ "url" ... "tls" ...). */}}
{{- define "topowise.extenderEntry" -}}
{{- $extender := .root.Values.scheduler.extender -}}
urlPrefix: {{ .url }}
filterVerb: filter
prioritizeVerb: prioritize
{{- if $extender.preempt }}
preemptVerb: preempt
{{- end }}
{{- if $extender.bind }}
bindVerb: bind
{{- end }}
weight: {{ $extender.weight }}
# Names instead of whole nodes. `false` also breaks kube-scheduler's own scores (kubernetes#141781).
nodeCacheCapable: true
ignorable: {{ $extender.ignorable }}
{{- /* A steered bind waits for the marker plug-in of its node, and a bind of claims may read them; the value for other
binds is too short for that. */}}
{{- $config := include "topowise.schedulerConfig" .root | fromYaml }}
{{- $steering := $config.steering | default dict }}
{{- $waits := or (dig "enabled" false $steering) (dig "resourceClaims" "enabled" false $config) }}
httpTimeout: {{ ternary "10s" $extender.httpTimeout (and $waits (eq $extender.httpTimeout "2s")) }}
{{- with $extender.managedResources }}
managedResources:
{{- $marker := dict "name" "topowise.io/numa" "ignoredByScheduler" true }}
{{- range ternary (append . $marker) . (dig "enabled" false $steering) }}
  - name: {{ .name }}
    ignoredByScheduler: {{ .ignoredByScheduler | default false }}
{{- end }}
{{- end }}
{{- with .tls }}
enableHTTPS: true
tlsConfig: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The KubeSchedulerConfiguration of mode own. */}}
{{- define "topowise.kubeSchedulerConfig" -}}
{{- $scheduler := .Values.scheduler -}}
{{- $service := include "topowise.schedulerConfig" . | fromYaml -}}
{{- $url := printf "http://127.0.0.1:%v" $service.extender.port -}}
{{- $election := dict "leaderElect" (gt (int $scheduler.replicas) 1) "resourceName" (include "topowise.componentName" (list . "scheduler")) "resourceNamespace" .Release.Namespace -}}
{{- $known := dict "leaderElection" $election -}}
{{/* A sample of the nodes may be the very one without NUMA room (kubernetes#122057). */}}
{{- $_ := set $known "percentageOfNodesToScore" 100 -}}
{{- $profile := dict "schedulerName" $scheduler.kubeScheduler.schedulerName -}}
{{/* Nodes without steering take pods with a marker too; the service counts the markers of the other nodes. Also
without steering: otherwise no node would take a pod that still requests markers. */}}
{{- $args := dict "apiVersion" "kubescheduler.config.k8s.io/v1" "kind" "NodeResourcesFitArgs" "ignoredResources" (list "topowise.io/numa") -}}
{{- $_ := set $profile "pluginConfig" (list (dict "name" "NodeResourcesFit" "args" $args)) -}}
{{- $_ := set $known "profiles" (list $profile) -}}
{{- $_ := set $known "extenders" (list (include "topowise.extenderEntry" (dict "root" . "url" $url) | fromYaml)) -}}
{{- $head := dict "apiVersion" "kubescheduler.config.k8s.io/v1" "kind" "KubeSchedulerConfiguration" -}}
{{- toYaml (mustMergeOverwrite $known (deepCopy $scheduler.kubeScheduler.config) $head) -}}
{{- end -}}

{{/* Every address of a scheduler's pod, of the family that scheduler.config.serving.address is of. */}}
{{- define "topowise.anyAddress" -}}
{{- ternary "::" "0.0.0.0" (contains ":" (dig "serving" "address" "" .Values.scheduler.config)) -}}
{{- end -}}

{{/* Whether only the pod itself reaches an address: "true" or "". */}}
{{- define "topowise.isLoopback" -}}
{{- if or (hasPrefix "127." .) (eq . "::1") -}}true{{- end -}}
{{- end -}}

{{/* Whether a daemon's port of metrics and health can be reached from outside its pod: "true" or "". Of a config. */}}
{{- define "topowise.isServing" -}}
{{- $serving := .serving | default dict -}}
{{- if and (ne (toString (dig "port" 9153 $serving)) "0") (not (include "topowise.isLoopback" (dig "address" "0.0.0.0" $serving))) -}}true{{- end -}}
{{- end -}}

{{- define "topowise.servingPort" -}}
{{- dig "port" 9153 (.serving | default dict) -}}
{{- end -}}

{{- define "topowise.servingScheme" -}}
{{- ternary "https" "http" (not (empty (dig "tls" nil (.serving | default dict)))) -}}
{{- end -}}

{{/* Liveness and readiness of a daemon, of its config. A process that only lacks CPU answers late, and a restart takes more CPU: one
     answer in three minutes is enough to live. */}}
{{- define "topowise.probes" -}}
{{- if include "topowise.isServing" . }}
livenessProbe:
  httpGet: {path: /livez, port: metrics, scheme: {{ include "topowise.servingScheme" . | upper }}}
  periodSeconds: 20
  timeoutSeconds: 20
  failureThreshold: 9
readinessProbe:
  httpGet: {path: /readyz, port: metrics, scheme: {{ include "topowise.servingScheme" . | upper }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
{{- end -}}

{{/* No privileges at all; values merged over it. Of (dict "root" {} "over" {}). */}}
{{- define "topowise.securityContext" -}}
{{- $least := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- toYaml (mustMergeOverwrite $least (deepCopy .)) -}}
{{- end -}}

{{/* Directories of the host that the exporter's configuration names, beside /sys: a JSON list of {name, path}. */}}
{{- define "topowise.hostDirectories" -}}
{{- $config := include "topowise.exporterConfig" . | fromYaml -}}
{{- $root := dig "kubeletRoot" "/var/lib/kubelet" $config -}}
{{- $socket := dig "podresourcesSocket" "/var/lib/kubelet/pod-resources/kubelet.sock" $config | trimPrefix "unix://" -}}
{{- $wanted := list -}}
{{- if $root -}}{{- $wanted = append $wanted (dict "name" "kubelet" "path" (clean $root)) -}}{{- end -}}
{{- $wanted = append $wanted (dict "name" "pod-resources" "path" (dir $socket)) -}}
{{- $kubelet := $config.kubelet | default dict -}}
{{- $configFile := dig "configFile" "/var/lib/kubelet/config.yaml" $kubelet -}}
{{- if $configFile -}}
{{- if and (not $root) (eq (dir $configFile) "/var/lib/kubelet") -}}
{{- fail "exporter.config.kubeletRoot is empty, so kubelet.configFile in it is not mounted: set configFile to \"\" and use kubelet.configz or kubelet.overrides" -}}
{{- end -}}
{{- $wanted = append $wanted (dict "name" "kubelet-config" "path" (dir $configFile)) -}}
{{- end -}}
{{- with dig "configDir" "" $kubelet -}}{{- $wanted = append $wanted (dict "name" "kubelet-config-dir" "path" (clean .)) -}}{{- end -}}
{{- $taken := list -}}
{{- range $one := $wanted -}}
{{- $isInside := false -}}
{{- range $taken -}}
{{- if or (eq .path $one.path) (hasPrefix (printf "%s/" .path) $one.path) -}}{{- $isInside = true -}}{{- end -}}
{{- end -}}
{{- if not $isInside -}}{{- $taken = append $taken $one -}}{{- end -}}
{{- end -}}
{{- toJson $taken -}}
{{- end -}}

{{/* Ports that others can reach beside those of metrics and extender: a JSON list. Of a SchedulerConfiguration. */}}
{{- define "topowise.openPorts" -}}
{{- $ports := list -}}
{{- with include "topowise.grpcPort" . -}}{{- $ports = append $ports (int .) -}}{{- end -}}
{{- $readOnly := .readOnly | default dict -}}
{{- $port := dig "port" 8081 $readOnly -}}
{{- if and $port (not (include "topowise.isLoopback" (dig "address" "127.0.0.1" $readOnly))) -}}{{- $ports = append $ports $port -}}{{- end -}}
{{- toJson $ports -}}
{{- end -}}

{{/* The gRPC port that others can reach, "" without. Of a SchedulerConfiguration. */}}
{{- define "topowise.grpcPort" -}}
{{- $grpc := .grpc | default dict -}}
{{- if and $grpc.port (not (include "topowise.isLoopback" (dig "address" "127.0.0.1" $grpc))) -}}
{{- int $grpc.port -}}
{{- end -}}
{{- end -}}
