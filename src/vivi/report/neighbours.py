"""Which frames does an encoder hold to be alike? Frames of held-out videos, what lies nearest to some of them, and a
map of all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from vivi.prepare.corpus import Corpus
from vivi.report.curves import run_names
from vivi.report.strips import ShownFrame, keep_thumbnail
from vivi.report.tsne import tsne
from vivi.runtime.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vivi.model.architecture import Architecture

VIDEOS = 64
"""At most so many held-out videos are looked through, up to four shots of each."""
QUERIES, NEAREST = 6, 5


@dataclass(frozen=True)
class Frame:
    """The middle frame of a shot, which is counted from 1 in its video; `number` is that of the video on the page."""

    image: Tensor  # uint8 (3, height, width)
    thumbnail: ShownFrame
    video: str
    number: int
    shot: int


@dataclass(frozen=True)
class Seen:
    """The frames as an encoder sees them."""

    name: str
    rows: list[tuple[Frame, list[tuple[Frame, float]]]]  # frames, and the nearest to each with their cosine
    places: list[tuple[Frame, float, float]]  # on a map of side 1
    retrieval: tuple[float, float, int] | None  # as in training: how often, by chance, of how many frames
    which: str  # "held-out", or "training and held-out" where too few are


def look(encoders: Sequence[Path], corpus: Path, out: Path) -> Iterator[Seen]:
    """What the encoders of runs see; thumbnails are written below `out`."""
    from vivi.model.encoder import load_encoder
    from vivi.model.files import read_encoder

    frames, which = read_frames(corpus, out / "frames")
    names = run_names([run if run.is_dir() else run.parent for run in encoders])
    for name, run in zip(names, encoders, strict=True):
        architecture, _ = read_encoder(run)
        encoder, _ = load_encoder(run)
        yield see(name, encoder, architecture, frames, which)


def read_frames(corpus: Path, folder: Path) -> tuple[list[Frame], str]:
    """The middle frames of shots of held-out videos, whose thumbnails are written into `folder`; and whether training
    videos are among them, in words."""
    from torch import from_numpy

    from vivi.data.index import open_index
    from vivi.train.monitor import middle_frames

    index = open_index(Corpus(corpus))
    found, note = middle_frames(index, index.test, VIDEOS)
    numbers = {video: number for number, video in enumerate(dict.fromkeys(video for video, _ in found))}
    if len(numbers) < 2 or len(found) <= len(numbers):
        raise UserError(f"{corpus} has too few videos with two shots to look for neighbours; remove --encoders")
    folder.mkdir(parents=True, exist_ok=True)
    frames = []
    for (video, shot), pixels in found.items():
        thumbnail = keep_thumbnail(0.0, Image.fromarray(pixels), folder)
        in_video = shot - int(index.first_shot[video]) + 1
        image = from_numpy(pixels).permute(2, 0, 1)
        frames.append(Frame(image, thumbnail, index.video_name(video), numbers[video], in_video))
    return frames, "training and held-out" if note else "held-out"


def see(name: str, encoder: nn.Module, architecture: Architecture, frames: list[Frame], which: str) -> Seen:
    """Of a query its own shot is left out, so that what is found is no copy."""
    import torch
    from torch.nn import functional as F

    from vivi.evaluate.features import embed
    from vivi.train.monitor import retrieval

    device = "cuda" if torch.cuda.is_available() else "cpu"
    about = (architecture.size, architecture.mean, architecture.std)
    features = F.normalize(embed(encoder.to(device), [frame.image for frame in frames], *about, device), dim=1)
    videos = torch.tensor([frame.number for frame in frames])
    shots = torch.tensor([frame.shot for frame in frames])
    own_video = videos[:, None] == videos  # (n, n)
    own_shot = own_video & (shots[:, None] == shots)
    # A frame whose video has no other shot could have no hit.
    able = torch.nonzero((own_video & ~own_shot).any(dim=1)).flatten()
    order = able[torch.randperm(len(able), generator=torch.Generator().manual_seed(0))].tolist()
    first = {frames[query].video: query for query in reversed(order)}  # of each video
    queries = sorted(order, key=lambda query: first[frames[query].video] != query)[:QUERIES]
    similarity = (features[queries] @ features.T).masked_fill(own_shot[queries], -math.inf)
    available = int((~own_shot[queries]).sum(dim=1).min())
    values, found = similarity.topk(min(NEAREST, available), dim=1)  # (queries, nearest)
    rows = [
        (frames[query], [(frames[other], cosine) for other, cosine in zip(others, cosines, strict=True)])
        for query, others, cosines in zip(queries, found.tolist(), values.tolist(), strict=True)
    ]
    places = [(frame, *place) for frame, place in zip(frames, tsne(features.double().numpy()).tolist(), strict=True)]
    return Seen(name, rows, places, retrieval(features, videos, shots), which)
