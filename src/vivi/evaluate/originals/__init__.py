"""The 19 tasks of VTAB out of the data sets' original files: no TensorFlow, and never a pickle."""

from __future__ import annotations

from pathlib import Path

from vivi.evaluate.examples import Original
from vivi.evaluate.originals.cifar import CIFAR100
from vivi.evaluate.originals.class_folders import CALTECH101, EUROSAT, RESISC45, SUN397
from vivi.evaluate.originals.clevr import CLEVR_COUNT, CLEVR_DISTANCE
from vivi.evaluate.originals.dmlab import DMLAB
from vivi.evaluate.originals.dsprites import DSPRITES_LOCATION, DSPRITES_ORIENTATION
from vivi.evaluate.originals.kitti import KITTI_DISTANCE
from vivi.evaluate.originals.listed import DTD, FLOWERS102, PETS
from vivi.evaluate.originals.pcam import PATCH_CAMELYON
from vivi.evaluate.originals.retinopathy import RETINOPATHY
from vivi.evaluate.originals.smallnorb import SMALLNORB_AZIMUTH, SMALLNORB_ELEVATION
from vivi.evaluate.originals.source import Found, find
from vivi.evaluate.originals.svhn import SVHN
from vivi.evaluate.tasks import definition
from vivi.runtime.errors import UserError, first_line

__all__ = ["SOURCES", "Found", "is_there", "look", "read_original"]

SOURCES = {
    "caltech101": CALTECH101,
    "cifar100": CIFAR100,
    "dtd": DTD,
    "flowers102": FLOWERS102,
    "pets": PETS,
    "svhn": SVHN,
    "sun397": SUN397,
    "patch_camelyon": PATCH_CAMELYON,
    "eurosat": EUROSAT,
    "resisc45": RESISC45,
    "diabetic_retinopathy": RETINOPATHY,
    "clevr_count": CLEVR_COUNT,
    "clevr_distance": CLEVR_DISTANCE,
    "dmlab": DMLAB,
    "kitti_distance": KITTI_DISTANCE,
    "dsprites_location": DSPRITES_LOCATION,
    "dsprites_orientation": DSPRITES_ORIENTATION,
    "smallnorb_azimuth": SMALLNORB_AZIMUTH,
    "smallnorb_elevation": SMALLNORB_ELEVATION,
}


def read_original(name: str, data: Path) -> Original:
    """A task's data set from under a folder, in VTAB's splits; images are read when they are asked for."""
    source = SOURCES[name]
    try:
        place, missing = find(source, _names(name), data)
        if missing:
            raise UserError(f"{place} lacks {', '.join(missing)}, which {name} needs; get it from {source.where}")
        return source.read(place)
    except OSError as error:
        raise UserError(_unreadable(error, data)) from None


def is_there(name: str, data: Path) -> bool:
    """Whether a task's data set lies under a folder."""
    try:
        return not find(SOURCES[name], _names(name), data)[1]
    except (UserError, OSError):
        return True  # there, and unreadable: whoever reads it says why


def look(name: str, data: Path) -> Found:
    """What lies under a folder of a task's data set, without reading images."""
    source = SOURCES[name]
    place, missing = data / source.folders[0], source.needs
    try:
        place, missing = find(source, _names(name), data)
        counts = None if missing or source.count is None else source.count(place)
    except UserError as error:
        return Found(place, missing, source.where, None, first_line(error))
    except OSError as error:
        return Found(place, missing, source.where, None, _unreadable(error, data))
    named = None if counts is None else dict(zip(("train", "val", "test"), counts, strict=True))
    return Found(place, missing, source.where, named, "")


def _names(name: str) -> tuple[str, ...]:
    task = definition(name)
    return (name, *task.folders) if task else (name,)


def _unreadable(error: OSError, data: Path) -> str:
    return f"{error.filename or data} cannot be read: {error.strerror or first_line(error)}; see to its permissions"
