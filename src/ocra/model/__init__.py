"""The network: Pseudocode 1 (`ocra`), its parts, and its weights."""

from ocra.model.interventions import Lesion
from ocra.model.network import Network
from ocra.model.ocra import OCRA
from ocra.model.trace import Trace, Windows

__all__ = ["OCRA", "Lesion", "Network", "Trace", "Windows"]
