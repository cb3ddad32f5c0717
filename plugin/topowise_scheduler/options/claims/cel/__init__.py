"""The part of CEL that device selectors use (decision 13). Pure.

`values` are values and their comparison, `functions` the functions, `parser` makes a function of Python from a text,
and `expressions` adds the variable `device`. What is not in this part of the language raises NotModelledError.

Upstream: github.com/google/cel-go, k8s.io/apiserver/pkg/cel/library, k8s.io/dynamic-resource-allocation/cel (1.36).
"""
