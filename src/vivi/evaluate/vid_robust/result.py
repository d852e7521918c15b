"""Where RobustResult was; it is in results.py."""

from vivi.evaluate.results import RobustResult as RobustResult
