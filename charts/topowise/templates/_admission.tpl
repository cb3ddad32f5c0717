{{/*
ValidatingAdmissionPolicies: RBAC compares kinds of objects and verbs, a policy compares fields. Each policy is for one
account, by a match condition, so that requests of other users are not evaluated; "conditions" are in its place.
*/}}

{{/* Whether the API server serves them: "true" or "". */}}
{{- define "topowise.hasPolicies" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version -}}true{{- end -}}
{{- end -}}

{{/* The name by which the API server knows the account of (list $ component). */}}
{{- define "topowise.user" -}}
{{- $root := first . -}}
{{- if and (eq (last .) "scheduler") (eq $root.Values.scheduler.mode "static") -}}
{{- $root.Values.scheduler.static.user -}}
{{- else -}}
{{- printf "system:serviceaccount:%s:%s" $root.Release.Namespace (include "topowise.serviceAccountName" .) -}}
{{- end -}}
{{- end -}}

{{/*
Whether the service shares its user with a kube-scheduler, which writes more than the service does: "true" or "". Then
policies that would refuse writes of kube-scheduler are left out.
*/}}
{{- define "topowise.isSharedUser" -}}
{{- if eq (include "topowise.user" (list . "scheduler")) (include "topowise.kubeSchedulerUser" .) -}}true{{- end -}}
{{- end -}}

{{/* The name by which the API server knows the kube-scheduler that the service runs beside, "" if there is none. */}}
{{- define "topowise.kubeSchedulerUser" -}}
{{- if eq .Values.scheduler.mode "static" -}}
system:kube-scheduler
{{- else if eq .Values.scheduler.mode "own" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "topowise.kubeSchedulerAccount" .) -}}
{{- end -}}
{{- end -}}

{{/*
A policy and its binding. Of (dict "root" $ "component" "scheduler" "name" "..." "user" "..." "rule" (dict of a resource
rule, v1 of the core group by default) "conditions" (list) "variables" (list) "validations" (list)).
*/}}
{{- define "topowise.policy" -}}
{{- $rule := merge .rule (dict "apiGroups" (list "") "apiVersions" (list "v1")) -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}
  labels: {{- include "topowise.labels" (list .root .component) | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: {{- toYaml (list $rule) | nindent 6 }}
  matchConditions:
    {{- with .conditions }}
    {{- toYaml . | nindent 4 }}
    {{- else }}
    - name: is-{{ .component }}
      expression: request.userInfo.username == "{{ .user }}"
    {{- end }}
  {{- with .variables }}
  variables: {{- toYaml . | nindent 4 }}
  {{- end }}
  validations: {{- toYaml .validations | nindent 4 }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels: {{- include "topowise.labels" (list .root .component) | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end -}}

{{/* CEL: whether two maps are equal but for some keys. Of (list "new" "old" (list "key")). */}}
{{- define "topowise.celEqualBut" -}}
{{- $new := index . 0 -}}
{{- $old := index . 1 -}}
{{- $free := index . 2 | default list | toJson -}}
{{ $new }}.all(key, key in {{ $free }} || key in {{ $old }} && {{ $new }}[key] == {{ $old }}[key]) && {{ $old }}.all(key, key in {{ $free }} || key in {{ $new }})
{{- end -}}

{{/* CEL: whether a part of the object is as before but for some keys. Of (list "spec" (list "taints")). */}}
{{- define "topowise.celUnchanged" -}}
{{- include "topowise.celEqualBut" (list (printf "dyn(object.%s)" (first .)) (printf "dyn(oldObject.%s)" (first .)) (last .)) -}}
{{- end -}}

{{/* CEL: the same of metadata, but for what the API server itself keeps, and some more keys. Of (list "annotations"). */}}
{{- define "topowise.celMetadataUnchanged" -}}
{{- include "topowise.celUnchanged" (list "metadata" (concat (list "managedFields" "resourceVersion" "generation" "deletionTimestamp" "deletionGracePeriodSeconds") .)) -}}
{{- end -}}

{{/* Variables `before` and `after` for topowise.celAnnotationsUnchanged. A JSON list. */}}
{{- define "topowise.annotationVariables" -}}
{{- $before := dict "name" "before" "expression" "oldObject != null && has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}" -}}
{{- $after := dict "name" "after" "expression" "has(object.metadata.annotations) ? object.metadata.annotations : {}" -}}
{{- toJson (list $before $after) -}}
{{- end -}}

{{/* CEL: whether annotations are as before but for these keys. Of (list "key"). */}}
{{- define "topowise.celAnnotationsUnchanged" -}}
{{- include "topowise.celEqualBut" (list "variables.after" "variables.before" .) -}}
{{- end -}}

{{/* The version of MutatingAdmissionPolicies that the API server serves, or "". 1.34 and 1.35 have a feature gate. */}}
{{- define "topowise.mutatingPolicyVersion" -}}
{{- if semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version -}}
v1
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy" -}}
v1beta1
{{- end -}}
{{- end -}}

{{/*
A policy that changes new pods, and its bindings for pods with labels and for pods of namespaces with these labels: for
other pods nothing is evaluated. A pod that cannot be changed is created as it is, which is better than no pod. Of
(dict "root" $ "name" "..." "reinvocation" "..." "labels" (dict) "notIn" (list of namespaces) "conditions" (list)
"mutations" (list of apply configurations)).
*/}}
{{- define "topowise.podMutation" -}}
{{- $head := printf "apiVersion: admissionregistration.k8s.io/%s" (include "topowise.mutatingPolicyVersion" .root) -}}
{{- $labels := include "topowise.labels" (list .root "scheduler") -}}
{{ $head }}
kind: MutatingAdmissionPolicy
metadata:
  name: {{ .name }}
  labels: {{- $labels | nindent 4 }}
spec:
  failurePolicy: Ignore
  reinvocationPolicy: {{ .reinvocation }}
  matchConstraints:
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}
    {{- with .notIn }}
    namespaceSelector:
      matchExpressions:
        - {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ toJson . }}}
    {{- end }}
  matchConditions: {{- toYaml .conditions | nindent 4 }}
  mutations:
    {{- range .mutations }}
    - patchType: ApplyConfiguration
      applyConfiguration: {{- toYaml (dict "expression" .) | nindent 8 }}
    {{- end }}
{{- range $by := list "namespace" "object" }}
---
{{ $head }}
kind: MutatingAdmissionPolicyBinding
metadata:
  name: {{ $.name }}-by-{{ $by }}
  labels: {{- $labels | nindent 4 }}
spec:
  policyName: {{ $.name }}
  matchResources:
    {{ $by }}Selector:
      matchLabels: {{- toYaml $.labels | nindent 8 }}
{{- end }}
{{- end -}}
