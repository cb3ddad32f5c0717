"""What holds for all tests."""

from hypothesis import settings

# A machine that is busy with other processes takes any time for an example.
settings.register_profile("topowise", deadline=None)
settings.load_profile("topowise")
