"""The flags of the commands that put an encoder to use."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vivi.runtime.errors import UserError, check_ranges, require
from vivi.runtime.storage import check_replaceable

Format = Literal["timm", "hf", "torchscript", "onnx"]
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# In a folder of its own: timm before 1.0.29 takes any *.safetensors beside the model's for the model's.
TEST_VECTOR = "check/test_vector.safetensors"
EXPORTED = (TEST_VECTOR, "check", "README.md", "config.json", "model.safetensors", "model.pt", "model.onnx")


@dataclass(frozen=True)
class ExportSettings:
    """The encoder that is exported, and the format."""

    encoder: Annotated[Positional[str], arg(metavar="RUN")]
    """A run or its encoder.safetensors; or timm:NAME, ms:FILE, mt-ssl:FILE, ti:FILE."""
    to: Format
    """timm: weights and config.json for timm.create_model; hf: the same for the Hugging Face hub;
    torchscript: model.pt, for PyTorch in Python and C++; onnx: model.onnx, for other runtimes."""
    out: Path
    """The folder to make; one that was exported before is replaced, any other is refused."""
    name: str = ""
    """The model's name in its card; default: that of the run's folder."""
    license: str = ""
    """The license you give the model, as the hub writes it (apache-2.0, cc-by-4.0, other, ...); default: none."""
    results: Path | None = None
    """Folder of results, the --out of vivi evaluate: those of this encoder go into the card."""
    normalise_inside: bool = False
    """torchscript and onnx: the model takes 8-bit RGB (0 to 255) and normalises it itself."""

    def check(self) -> None:
        """Raises where the flags cannot go together or --out is taken; before torch is imported, which takes
        seconds."""
        a_model = ":" in self.encoder or os.path.exists(self.encoder)
        require(a_model, f"there is no run or file {self.encoder}: give the --out of a vivi train, or timm:NAME")
        require(not self.encoder.startswith("untrained:"), f"{self.encoder} has learned nothing: export a run")
        no_results = f"there is no folder {self.results}: give --results the --out of a vivi evaluate"
        require(self.results is None or self.results.is_dir(), no_results)
        outside = (
            f"--normalise-inside goes with --to torchscript and onnx; for --to {self.to}, timm normalises images"
        )
        require(not self.normalise_inside or self.to in ("torchscript", "onnx"), outside)
        written = re.fullmatch(r"([a-z0-9][a-z0-9.+-]*)?", self.license)
        require(written is not None, f"--license is '{self.license}'; write it like apache-2.0, cc-by-4.0 or other")
        if self.to == "onnx" and (missing := [name for name in ONNX_PACKAGES if find_spec(name) is None]):
            raise UserError(f"--to onnx needs {' and '.join(missing)}: pip install 'vivi-video[export]'")
        check_replaceable(self.out, EXPORTED)


@dataclass(frozen=True)
class SelectSettings:
    """How frames are chosen."""

    count: int = 200
    """How many frames."""
    outliers: float = 0.02
    """Leave out this share of the frames, those that are least like any others: black ones, test cards, accidents."""
    only_outliers: bool = False
    """Choose the outliers instead."""
    near_duplicate: float = 0.98
    """Never choose two frames whose cosine similarity is this or more."""
    seed: int = 0
    """Random seed of the choice."""

    def check(self) -> None:
        check_ranges(
            self, {"count": (1, 10**6), "outliers": (0, 0.9), "near_duplicate": (0, 1), "seed": (0, 2**63 - 1)}
        )
