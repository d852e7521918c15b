"""Where DetectionResult was; it is in results.py."""

from vivi.evaluate.results import DetectionResult as DetectionResult
from vivi.evaluate.results import DetectorRun as DetectorRun
from vivi.evaluate.results import Precision as Precision
from vivi.evaluate.results import read_run as read_run
