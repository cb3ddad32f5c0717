"""How a prediction ends without a result. Pure."""

from __future__ import annotations


class NotModelledError(Exception):
    """The result is not known; the text names the feature."""


class AttemptError(Exception):
    """kube-scheduler ends the attempt to schedule the pod with this error."""


class EvaluationError(Exception):
    """A CEL expression fails in kube-scheduler, too; the text says why."""
