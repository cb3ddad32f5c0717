"""`make bench`: figures of whole processes and of hot paths. Compare ratios of the same run; machines differ.

The parts measure the exporter, the engine, the scheduler service and density.
"""
