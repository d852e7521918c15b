"""What the encoder is trained with: one file per loss, each a module with its own head (base.py says how they work).

Usable alone, on plain tensors, in anybody's loop:

    vivi.losses.Exemplar(2048)(h)              h (shots, frames, 2048): a scalar
    vivi.losses.InfoNCE(512, shots=4)(e)       e (videos, 4, 512): a scalar
    vivi.losses.semi_hard_triplets(embeddings, labels)
    vivi.losses.info_nce(predictions, candidates, targets)
"""

from vivi.losses.base import FrameLoss, Loss, VideoLoss
from vivi.losses.contrastive import Contrastive
from vivi.losses.exemplar import Exemplar, semi_hard_triplets
from vivi.losses.infonce import InfoNCE, info_nce
from vivi.losses.order import Order
from vivi.losses.patches import Jigsaw, Location
from vivi.losses.rotation import Rotation
from vivi.losses.supervised import Supervised

__all__ = [
    "Contrastive",
    "Exemplar",
    "FrameLoss",
    "InfoNCE",
    "Jigsaw",
    "Location",
    "Loss",
    "Order",
    "Rotation",
    "Supervised",
    "VideoLoss",
    "info_nce",
    "semi_hard_triplets",
]
