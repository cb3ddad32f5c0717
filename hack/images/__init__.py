"""The container image: assembled, built on a base, carried into clusters."""
