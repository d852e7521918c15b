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
    """The middle frame of a shot, which is counted from 1; `number` is that of its video on the page."""

    thumbnail: ShownFrame
    video: str
    shot: int
    number: int


@dataclass(frozen=True)
class Frames:
    """The frames that encoders are shown: n of them, with the positions of their videos and shots in the index."""

    shown: list[Frame]
    images: list[Tensor]  # uint8 (3, height, width)
    videos: Tensor  # (n,)
    shots: Tensor  # (n,)
    which: str  # "held-out", or "training and held-out" where too few are


@dataclass(frozen=True)
class Seen:
    """The frames as an encoder sees them."""

    name: str
    rows: list[tuple[Frame, list[tuple[Frame, float]]]]  # frames, and the nearest to each with their cosine
    places: list[tuple[Frame, float, float]]  # on a map of side 1
    retrieval: tuple[float, float, int] | None  # as in training: how often, by chance, of how many frames
    which: str


def look(encoders: Sequence[Path], corpus: Path, out: Path) -> Iterator[Seen]:
    """What the encoders of runs see; thumbnails are written below `out`."""
    from vivi.model.encoder import load_encoder
    from vivi.model.files import read_encoder

    frames = read_frames(corpus, out / "frames")
    names = run_names([run if run.is_dir() else run.parent for run in encoders])
    for name, run in zip(names, encoders, strict=True):
        architecture, _ = read_encoder(run)
        encoder, _ = load_encoder(run)
        yield see(name, encoder, architecture, frames)


def read_frames(corpus: Path, folder: Path) -> Frames:
    """The middle frames of shots of held-out videos; their thumbnails are written into `folder`."""
    import torch

    from vivi.data.index import open_index
    from vivi.train.monitor import middle_frames

    index = open_index(Corpus(corpus))
    frames, note = middle_frames(index, VIDEOS)
    videos, shots = torch.tensor([*frames], dtype=torch.long).view(-1, 2).unbind(1)
    if len(set(videos.tolist())) < 2 or len(set(shots.tolist())) <= len(set(videos.tolist())):
        raise UserError(f"{corpus} has too few videos with two shots to look for neighbours; remove --encoders")
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {video: number for number, video in enumerate(dict.fromkeys(videos.tolist()))}
    shown = []
    for (video, shot), pixels in frames.items():
        thumbnail = keep_thumbnail(0.0, Image.fromarray(pixels), folder)
        in_video = shot - int(index.first_shot[video]) + 1
        shown.append(Frame(thumbnail, index.video_name(video), in_video, numbers[video]))
    images = [torch.from_numpy(pixels).permute(2, 0, 1) for pixels in frames.values()]
    return Frames(shown, images, videos, shots, "training and held-out" if note else "held-out")


def see(name: str, encoder: nn.Module, architecture: Architecture, frames: Frames) -> Seen:
    """Of a query its own shot is left out, so that what is found is no copy."""
    import torch
    from torch.nn import functional as F

    from vivi.evaluate.features import embed
    from vivi.train.monitor import retrieval

    device = "cuda" if torch.cuda.is_available() else "cpu"
    about = (architecture.size, architecture.mean, architecture.std)
    features = F.normalize(embed(encoder.to(device), frames.images, *about, device), dim=1)  # (n, d)
    own_video, own_shot = frames.videos[:, None] == frames.videos, frames.shots[:, None] == frames.shots
    # A frame whose video has no other shot could have no hit.
    able = torch.nonzero((own_video & ~own_shot).any(dim=1)).flatten()
    order = able[torch.randperm(len(able), generator=torch.Generator().manual_seed(0))].tolist()
    first = {int(frames.videos[frame]): frame for frame in reversed(order)}  # of each video
    queries = sorted(order, key=lambda frame: first[int(frames.videos[frame])] != frame)[:QUERIES]
    similarity = (features[queries] @ features.T).masked_fill(own_shot[queries], -math.inf)
    nearest = min(NEAREST, int((~own_shot[queries]).sum(dim=1).min()))
    values, found = similarity.topk(nearest, dim=1)  # (queries, nearest)
    shown, rows = frames.shown, []
    for query, others, cosines in zip(queries, found.tolist(), values.tolist(), strict=True):
        rows.append((shown[query], [(shown[other], cosine) for other, cosine in zip(others, cosines, strict=True)]))
    places = [(frame, *place) for frame, place in zip(shown, tsne(features.double().numpy()).tolist(), strict=True)]
    return Seen(name, rows, places, retrieval(features, frames.videos, frames.shots), frames.which)
