"""What the encoder is trained with; each loss is a module with its own head, usable alone.

Frame losses (`Exemplar`, `Rotation`, `Jigsaw`, `RelativeLocation`, `Contrastive`) see the representations of frames,
h (cores, copies, shots, frames, d); `views` of all but the last makes the copies out of the frames. `Supervised` sees
those of labelled images, of which each is a shot, and the labels (cores, images). Video losses (`InfoNCE2`,
`InfoNCESequence`, `Order`, `ShuffledOrder`) see the embeddings of shots, e (groups, videos, shots, d), where a group
is a core, or all videos. Noise (groups, videos, shots + 1), uniform in [0, 1), is where losses that draw lots take
them from.

Each returns the loss of each core (or group), the mean over its terms there, and metrics of the same shape, without
gradients. Cores have equally many terms, so the mean over cores is the mean over the batch.
"""

from vivi.losses.contrastive import Contrastive
from vivi.losses.exemplar import Exemplar
from vivi.losses.infonce import InfoNCE2, InfoNCESequence
from vivi.losses.order import Order, ShuffledOrder
from vivi.losses.patches import Jigsaw, RelativeLocation
from vivi.losses.rotation import Rotation
from vivi.losses.supervised import Supervised

__all__ = [
    "Contrastive",
    "Exemplar",
    "InfoNCE2",
    "InfoNCESequence",
    "Jigsaw",
    "Order",
    "RelativeLocation",
    "Rotation",
    "ShuffledOrder",
    "Supervised",
]
