"""Benchmarks: each command measures VIVI beside its peers on the present machine."""
