"""VIVI: image representations learned from unlabelled video."""
