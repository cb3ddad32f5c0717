"""`make bench`: figures of whole processes and of hot paths. Ratios within one run can be compared; machines differ.

A part each measures the exporter, the engine, the scheduler service and density; results.py keeps what they found,
figures.py and tables.py print it, and pages.py makes docs/benchmarks.md and its pictures of a recorded run.
"""
