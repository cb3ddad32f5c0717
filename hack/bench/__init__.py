"""`make bench`: figures of whole processes. Ratios within one run are what can be compared; machines differ."""
