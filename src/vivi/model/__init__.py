"""The model: the encoder f, the pooling p, the prediction function g, and the losses on them; usable alone."""

from vivi.model.encoder import Encoder, load_encoder
from vivi.model.vivi import AttentionPooling, MeanPooling, Vivi, build_model

__all__ = ["AttentionPooling", "Encoder", "MeanPooling", "Vivi", "build_model", "load_encoder"]
