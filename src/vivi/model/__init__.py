"""The encoder f, the pooling p, and what heads are made of; usable alone."""

from vivi.model.pooling import AttentionPooling, MeanPooling

__all__ = ["AttentionPooling", "MeanPooling"]
