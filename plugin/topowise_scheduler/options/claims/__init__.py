"""Predicts which devices kube-scheduler allocates to the ResourceClaims of a pod on a node (DRA). Pure.

`objects` are the API's objects, `inventory` the devices of a node by pool, `allocated` the devices that claims have,
`selectors` the CEL expressions, `allocator` the structured allocator of kube-scheduler, and `extended` the claim for
extended resources that a class backs.
"""
