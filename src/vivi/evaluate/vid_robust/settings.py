"""The flags of vivi evaluate vid-robust."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vivi.evaluate.vid_robust.scores import Reduction
from vivi.runtime.errors import check_ranges, require


@dataclass(frozen=True)
class Robustness:
    """The classifier, and the set of frames on which its predictions are scored."""

    encoder: str = ""
    """A run that was trained with labels, or timm:NAME with the classifier it has (pretrained, or with --weights)."""
    frames: Path | None = None
    """Folder of the frames: the one that the names in pmsets.json start from."""
    metadata: Path | None = None
    """Folder with pmsets.json and labels.json; default: FRAMES, FRAMES/metadata, or beside FRAMES."""
    predictions: Path | None = None
    """Instead of --encoder, a JSON file: for each frame its class, or a list of scores (of classes or outputs)."""
    class_map: Path | None = None
    """A JSON file that says which outputs of the classifier belong to a class: class to outputs, or output to class;
    default: rev_class_idx_map.json or class_idx_map.json of the metadata, for classifiers of ImageNet."""
    reduction: Reduction = "max"
    """How the outputs that belong to a class become its score."""
    farthest: int = 0
    """Neighbours more than this many frames away do not count; 0: all neighbours of the set count."""
    weights: Path | None = None
    """A file of weights for timm:NAME."""
    name: str = ""
    """The classifier's name in results; default: that of its run, model or file."""
    out: Path = Path("results")
    """Folder for the results."""

    def check(self) -> None:
        check_ranges(self, {"farthest": (0, 10**6)})
        one = bool(self.encoder) != (self.predictions is not None)
        require(one, "give either --encoder, a classifier, or --predictions, a file of what one said")
        looks = not self.encoder or self.frames is not None
        require(looks, "--encoder needs --frames, the folder of the frames that it is to look at")
        require(self.weights is None or bool(self.encoder), "--weights goes with --encoder timm:NAME only")
        known = self.frames is not None or self.metadata is not None
        require(known, "--predictions needs --metadata, a folder with pmsets.json and labels.json")
        there = self.frames is None or self.frames.is_dir()
        require(there, f"there is no folder {self.frames}; --frames is the folder of the frames")
