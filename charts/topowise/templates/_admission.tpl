{{/*
ValidatingAdmissionPolicies: RBAC compares kinds of objects and verbs, a policy compares fields. Each policy is for one
account, by a match condition, so that requests of other users are not evaluated.
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
{{- $scheduler := .Values.scheduler -}}
{{- if eq $scheduler.mode "static" -}}
{{- if eq $scheduler.static.user "system:kube-scheduler" -}}true{{- end -}}
{{- else if and (eq $scheduler.mode "own") (eq (include "topowise.serviceAccountName" (list . "scheduler")) (include "topowise.kubeSchedulerAccount" .)) -}}
true
{{- end -}}
{{- end -}}

{{/*
A policy and its binding. Of (dict "root" $ "component" "scheduler" "name" "..." "user" "..." "rule" (dict of a resource
rule, v1 of the core group by default) "variables" (list) "validations" (list)).
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
    - name: is-{{ .component }}
      expression: request.userInfo.username == "{{ .user }}"
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

{{/* CEL: whether a map is as before but for some keys. Of (list "spec" (list "taints")). */}}
{{- define "topowise.celUnchanged" -}}
{{- $new := printf "dyn(object.%s)" (first .) -}}
{{- $old := printf "dyn(oldObject.%s)" (first .) -}}
{{- $free := last . | default list | toJson -}}
{{ $new }}.all(key, key in {{ $free }} || key in {{ $old }} && {{ $new }}[key] == {{ $old }}[key]) && {{ $old }}.all(key, key in {{ $free }} || key in {{ $new }})
{{- end -}}

{{/* CEL: the same of metadata, but for what the API server itself keeps, and some more keys. Of (list "annotations"). */}}
{{- define "topowise.celMetadataUnchanged" -}}
{{- include "topowise.celUnchanged" (list "metadata" (concat (list "managedFields" "resourceVersion" "generation" "deletionTimestamp" "deletionGracePeriodSeconds") .)) -}}
{{- end -}}

{{/* Variables `before` and `after` for topowise.celAnnotationsUnchanged. A JSON list. */}}
{{- define "topowise.annotationVariables" -}}
{{- $before := dict "name" "before" "expression" "has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}" -}}
{{- $after := dict "name" "after" "expression" "has(object.metadata.annotations) ? object.metadata.annotations : {}" -}}
{{- toJson (list $before $after) -}}
{{- end -}}

{{/* CEL: whether annotations are as before but for these keys. Of (list "key"). */}}
{{- define "topowise.celAnnotationsUnchanged" -}}
{{- $free := toJson . -}}
variables.after.all(key, key in {{ $free }} || key in variables.before && variables.after[key] == variables.before[key]) && variables.before.all(key, key in {{ $free }} || key in variables.after)
{{- end -}}
