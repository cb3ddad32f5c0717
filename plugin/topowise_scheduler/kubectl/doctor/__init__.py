"""`kubectl topowise doctor`: harmful settings, their consequences and corrections.

Every check is a function from objects to findings; command.py reads the objects, and orders and prints the findings.
"""

from topowise_scheduler.kubectl.doctor.command import run

__all__ = ["run"]
