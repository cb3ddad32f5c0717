"""What ends a command of the lab with one line."""


class LabError(Exception):
    """The thing, what was expected of it, and what to do about it."""
