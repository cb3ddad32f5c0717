{{/* Names, labels and images. */}}

{{- define "topowise.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "topowise.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "topowise.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "topowise.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* "<fullname>-exporter" of (list $ "exporter"). */}}
{{- define "topowise.componentName" -}}
{{- printf "%s-%s" (include "topowise.fullname" (first .)) (last .) -}}
{{- end -}}

{{- define "topowise.selectorLabels" -}}
{{- $root := first . -}}
app.kubernetes.io/name: {{ include "topowise.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{/* Labels of (list $ component). The chart's win: pods are selected by them, and the doctor looks for them. */}}
{{- define "topowise.labels" -}}
{{- $root := first . -}}
{{- $chart := printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- $own := include "topowise.ownLabels" . | fromYaml -}}
{{- $_ := set $own "helm.sh/chart" $chart -}}
{{- $_ := set $own "app.kubernetes.io/version" $root.Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- toYaml (merge $own ($root.Values.commonLabels | default dict)) -}}
{{- end -}}

{{/* Labels of pods: without versions, so that pods are replaced only when something about them changes. */}}
{{- define "topowise.podLabels" -}}
{{- $values := (first .).Values -}}
{{- $more := merge dict ((index $values (last .)).podLabels | default dict) ($values.commonLabels | default dict) -}}
{{- toYaml (merge (include "topowise.ownLabels" . | fromYaml) $more) -}}
{{- end -}}

{{- define "topowise.ownLabels" -}}
{{ include "topowise.selectorLabels" . }}
app.kubernetes.io/part-of: topowise
{{- end -}}

{{- define "topowise.serviceAccountName" -}}
{{- $root := first . -}}
{{- $account := (index $root.Values (last .)).serviceAccount -}}
{{- $account.name | default (ternary (include "topowise.componentName" .) "default" $account.create) -}}
{{- end -}}

{{/* Reference of (list imageValues defaultTag). */}}
{{- define "topowise.image" -}}
{{- $image := first . -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default (last .)) -}}
{{- end -}}
{{- end -}}

{{/* Whether there is a cluster to ask: "true" or "". Helm has none in `helm template`, and none where others render. */}}
{{- define "topowise.hasCluster" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" -}}true{{- end -}}
{{- end -}}

{{/*
The cluster's version as an image tag: "v1.31.2" of "v1.31.2-eks-a1b2c3" or "v1.31.2+k3s1". Without a cluster Helm has a
version of its own, which always ends in ".0", and Argo CD one without patch: neither is taken for the cluster's.
*/}}
{{- define "topowise.kubeSchedulerTag" -}}
{{- $known := .Capabilities.KubeVersion.Version -}}
{{- $version := regexFind "^v?[0-9]+\\.[0-9]+\\.[0-9]+" $known | trimPrefix "v" -}}
{{- if or (not $version) (and (hasSuffix ".0" $version) (not (include "topowise.hasCluster" .))) -}}
{{- fail (printf "scheduler.kubeScheduler.image.tag is empty, and %s may be anybody's version, as no cluster was asked: set it to the version of your API server (kubectl version), or render with --kube-version and a patch that is not 0" $known) -}}
{{- end -}}
{{- printf "v%s" $version -}}
{{- end -}}

{{/* Reference of mode own's kube-scheduler. */}}
{{- define "topowise.kubeSchedulerImage" -}}
{{- $image := .Values.scheduler.kubeScheduler.image -}}
{{- if or $image.tag $image.digest -}}
{{- include "topowise.image" (list $image "") -}}
{{- else -}}
{{- include "topowise.image" (list $image (include "topowise.kubeSchedulerTag" .)) -}}
{{- end -}}
{{- end -}}

{{/* ServiceAccount of (list $ component). */}}
{{- define "topowise.serviceAccount" -}}
{{- $root := first . -}}
{{- $account := (index $root.Values (last .)).serviceAccount -}}
{{- if $account.create }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "topowise.serviceAccountName" . }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "topowise.labels" . | nindent 4 }}
  {{- with $account.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
# Our own pods request the token; other pods under this account do not get it by default.
automountServiceAccountToken: false
{{- end }}
{{- end -}}
