"""The error that ends a command of the lab with a one-line message."""


class LabError(Exception):
    """The thing, what was expected of it, and what to do about it."""
