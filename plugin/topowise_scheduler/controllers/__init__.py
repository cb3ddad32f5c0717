"""Controllers of the leader: they requeue pods, tell pods what they wait for, nominate, and make room by evictions."""
