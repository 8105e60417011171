"""Speed and memory of the model, beside the machine's own matrix products in the same run."""

from ocra.benchmark.measure import MAIN_PRESETS, Row, measure_all
from ocra.benchmark.operations import multiply_adds

__all__ = ["MAIN_PRESETS", "Row", "measure_all", "multiply_adds"]
