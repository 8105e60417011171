"""The systems that the paper compares OCRA with, each one file that reads like its own paper; see docs/baselines.md."""

from ocra.baselines.capsnet import CapsNet, CapsNetConfig
from ocra.baselines.cnn import CNN, CNNConfig, SmallCNN, SmallCNNConfig
from ocra.baselines.ram import DRAM, RAM, DRAMConfig, RAMConfig

__all__ = [
    "CNN",
    "DRAM",
    "RAM",
    "CNNConfig",
    "CapsNet",
    "CapsNetConfig",
    "DRAMConfig",
    "RAMConfig",
    "SmallCNN",
    "SmallCNNConfig",
]
