"""`kubectl topowise plan`: what a change would do, beside today.

command.py reads the options and decides scenarios by `overlay.plan`; changes.py and traces.py parse what users write;
table.py and page.py show the results.
"""

from topowise_scheduler.kubectl.plan.command import run

__all__ = ["run"]
