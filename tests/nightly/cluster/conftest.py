"""Fixtures of the chart on a real API server, from tests/support."""

from rendered_chart import (
    chart,
    dashboard,
    default,
    helm,
    pytest_collection_modifyitems,
    recipes,
    render,
    repository,
    values,
)

__all__ = [
    "chart",
    "dashboard",
    "default",
    "helm",
    "pytest_collection_modifyitems",
    "recipes",
    "render",
    "repository",
    "values",
]
