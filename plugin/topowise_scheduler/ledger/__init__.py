"""What is known of the cluster: NRTs, nodes and pods, and what each node can still give.

Invariant of the room: everything here follows from API objects, our own answers and the clock, so that a new process
that lists the objects comes to the same, but for reservations. Each module opens with its own.
"""
