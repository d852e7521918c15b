"""Which frames does an encoder hold to be alike? Frames of held-out videos, and what lies nearest to them."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont, ImageOps

from vivi.prepare.corpus import Corpus
from vivi.runtime.errors import UserError
from vivi.runtime.storage import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from vivi.model.architecture import Architecture

VIDEOS = 64
"""At most so many held-out videos are looked through, up to four shots of each."""
_CELL = (168, 112)
_GAP, _FRAME, _HEAD = 10, 4, 30
_HIT, _PAPER, _EMPTY, _INK = (11, 138, 90), (255, 255, 255), (241, 242, 246), (90, 97, 112)


def draw_neighbours(
    encoder: nn.Module, architecture: Architecture, corpus: Path, path: Path, queries: int = 6, nearest: int = 5
) -> str:
    """Writes a PNG: in each row a frame, and the frames of other shots that the encoder puts nearest to it. Returns
    what it shows in words.

    The frames are the middle ones of shots of held-out videos; of each query, its own shot is left out, so that what
    is found is no copy. Frames of the query's own video are framed green.
    """
    import torch
    from torch.nn import functional as F

    from vivi.evaluate.features import embed

    images, videos, shots, which = _frames(corpus)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    about = (architecture.size, architecture.mean, architecture.std)
    features = F.normalize(embed(encoder.to(device), images, *about, device), dim=1)
    own_video, own_shot = videos[:, None] == videos, shots[:, None] == shots
    # A frame whose video has no other shot could have no hit.
    able = torch.nonzero((own_video & ~own_shot).any(dim=1)).flatten()
    order = able[torch.randperm(len(able), generator=torch.Generator().manual_seed(0))].tolist()
    first = {int(videos[frame]): frame for frame in reversed(order)}  # of each video
    chosen = sorted(order, key=lambda frame: first[int(videos[frame])] != frame)[:queries]
    similarity = (features[chosen] @ features.T).masked_fill(own_shot[chosen], -math.inf)
    nearest = min(nearest, int((~own_shot[chosen]).sum(dim=1).min()))
    values, found = similarity.topk(nearest, dim=1)
    hits = own_video[torch.tensor(chosen)[:, None], found]
    rows = [[(images[query], "", False)] for query in chosen]
    for row, *columns in zip(rows, found.tolist(), values.tolist(), hits.tolist(), strict=True):
        for other, value, hit in zip(*columns, strict=True):
            row.append((images[other], f"{value:.2f}" + " same video" * hit, hit))
    write_atomically(path, _draw(rows), sync=False)
    right, chance = int(hits.sum()), float(((own_video & ~own_shot).sum(1) / (~own_shot).sum(1))[chosen].mean())
    return (
        f"{len(chosen)} of {len(images)} frames from {len(videos.unique())} {which} videos, and the {nearest} frames "
        f"of other shots that lie nearest to each, by cosine. Green: a frame of the same video; {right} of "
        f"{hits.numel()} are, by chance it would be {chance * hits.numel():.1f}."
    )


def _frames(corpus: Path) -> tuple[list[Tensor], Tensor, Tensor, str]:
    """Frames (uint8), the numbers of their videos and shots, and whether the videos are held out."""
    import torch

    from vivi.data.index import open_index
    from vivi.train.monitor import middle_frames

    frames, note = middle_frames(open_index(Corpus(corpus)), VIDEOS)
    videos, shots = torch.tensor([*frames], dtype=torch.long).view(-1, 2).unbind(1)
    if len(set(videos.tolist())) < 2 or len(set(shots.tolist())) <= len(set(videos.tolist())):
        raise UserError(f"{corpus} has too few videos with two shots to look for neighbours; remove --encoders")
    images = [torch.from_numpy(frame).permute(2, 0, 1) for frame in frames.values()]
    return images, videos, shots, "training and held-out" if note else "held-out"


def _draw(rows: Sequence[Sequence[tuple[Tensor, str, bool]]]) -> bytes:
    """A PNG: rows of frames, what is written below each, and whether it is framed green."""
    width, height = _CELL[0] + 2 * _FRAME, _CELL[1] + 2 * _FRAME
    pitch = height + 18 + _GAP
    across = [_GAP + (width + _GAP) * place + _GAP * (place > 0) for place in range(len(rows[0]))]
    sheet = Image.new("RGB", (across[-1] + width + _GAP, _HEAD + pitch * len(rows)), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=13)
    for left, text in zip(across, ("frame", "nearest frames of other shots"), strict=False):
        draw.text((left + _FRAME, 8), text, _INK, font)
    for line, row in enumerate(rows):
        top = _HEAD + line * pitch
        for left, (image, caption, green) in zip(across, row, strict=True):
            if green:
                draw.rectangle((left, top, left + width - 1, top + height - 1), fill=_HIT)
            picture = ImageOps.pad(Image.fromarray(image.permute(1, 2, 0).numpy()), _CELL, color=_EMPTY)
            sheet.paste(picture, (left + _FRAME, top + _FRAME))
            draw.text((left + _FRAME, top + height + 2), caption, _INK, font)
    content = io.BytesIO()
    sheet.save(content, "PNG", optimize=True)
    return content.getvalue()
