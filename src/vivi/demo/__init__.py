"""A procedural world: videos with true shot boundaries, and labelled tasks, for the demo and the tests."""
