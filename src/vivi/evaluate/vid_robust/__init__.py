"""Robustness to what changes between the frames of a video: ImageNet-Vid-Robust and sets like it."""
