"""`kubectl topowise doctor`: what is set up in a way that will hurt, why it does, and how it is mended.

Every check is a function from what was read to findings; command.py reads, orders and prints.
"""

from topowise_scheduler.presentation.kubectl.doctor.command import run

__all__ = ["run"]
