"""vivi export: a folder that loads without vivi.

It holds the model in one of the formats of export_formats.py; a test vector, which is images with the features that
torch gives; and README.md, by model_card.py. What was written is loaded again and must give these features, or there
is no folder.
"""

from __future__ import annotations

import torch
from rich.console import Console
from torch import Tensor, nn

from vivi.answers.export_formats import Features, FromPixels, check_that_timm_has_it, load_exported, write_model
from vivi.answers.model_card import model_card
from vivi.answers.settings import EXPORTED, TEST_VECTOR, ExportSettings
from vivi.evaluate.encoders import load_model
from vivi.model.files import write_tensors
from vivi.runtime.console import warn
from vivi.runtime.errors import UserError, first_line, require
from vivi.runtime.storage import StorageError, replaced_folder, write_atomically

# Largest difference from torch, as a share of the largest feature: rounding in float32 gives 3e-5 in the deepest
# networks, an operation that means something else 1e-2 and more.
TOLERANCE = 1e-3
TEST_IMAGES = 3


def export(settings: ExportSettings, console: Console) -> None:
    """Writes the folder and checks it; prints how its features compare with torch's."""
    model = load_model(settings.encoder, name=settings.name)
    if settings.to in ("timm", "hf"):
        check_that_timm_has_it(model)
    pixels = blobs(model.size)
    with torch.no_grad():
        normalised = FromPixels(nn.Identity(), model.mean, model.std)(pixels)
        features = model.backbone(normalised)
    require(bool(features.isfinite().all()), f"{model.source} gives features that are not finite: export another")
    images = pixels if settings.normalise_inside else normalised
    largest = float(features.abs().max())
    card = model_card(model, settings, TOLERANCE * largest)
    try:
        with replaced_folder(settings.out, EXPORTED) as folder:
            (folder / TEST_VECTOR).parent.mkdir()
            write_tensors(folder / TEST_VECTOR, {"images": images, "features": features})
            write_model(model, settings.to, settings.normalise_inside, images, folder)
            difference = largest_difference(load_exported(folder, settings.to), images, features)
            if not difference <= TOLERANCE * largest:
                raise UserError(
                    f"as {settings.to}, {model.source} gives other features than in torch: they differ by "
                    f"{difference:.2g}, and rounding explains {TOLERANCE * largest:.2g}; choose another --to"
                )
            write_atomically(folder / "README.md", card.text.encode("utf-8", "replace"))
    except StorageError as error:
        raise UserError(f"the folder cannot be written: {error}; choose another --out") from None
    except UserError:
        raise
    except Exception as error:  # exporters and runtimes have many, and not every network suits them
        reason = first_line(error)[:200]
        raise UserError(
            f"{model.source} cannot be exported as {settings.to} ({reason}); choose another --to"
        ) from None
    for gap in card.gaps:
        warn(console, gap)
    differs = f"its features differ from torch's by {difference:.2g} at most (the largest is {largest:.3g})"
    console.print(f"{settings.out} is checked: {differs}", soft_wrap=True)
    console.print(f"how to load it: {settings.out / 'README.md'}", soft_wrap=True)


def blobs(size: int) -> Tensor:
    """Coloured images to test with, 8-bit RGB: (n, 3, size, size)."""
    coarse = torch.rand(TEST_IMAGES, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    smooth = nn.functional.interpolate(coarse, (size, size), mode="bilinear", align_corners=True)
    return (255 * smooth).to(torch.uint8)


def largest_difference(exported: Features, images: Tensor, features: Tensor) -> float:
    """Over all images at once, and over the first alone: any number of them must do."""
    with torch.no_grad():
        found = torch.cat([exported(images) - features, exported(images[:1]) - features[:1]])
    return float(found.abs().max())  # nan where one is
