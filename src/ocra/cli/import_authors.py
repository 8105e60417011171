"""ocra import-authors: weights of the paper's authors become weights of ours."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import Positional

from ocra.cli.main import parse
from ocra.errors import OcraError
from ocra.model.weights import ModelInfo, import_authors
from ocra.presets import preset as find_preset


def convert(checkpoint: Positional[Path], /, preset: str, out: Path) -> None:
    """Turn a PyTorch state dict published by the paper's authors into weights of ours.

    Example: ocra import-authors CHECKPOINT.pt --preset multimnist-10 --out authors-10

    Args:
        checkpoint: The authors' file. It is read as plain tensors; no program in it is run.
        preset: The experiment the checkpoint belongs to; 'ocra presets' lists them.
        out: Folder for the weights.
    """
    experiment = find_preset(preset)
    if (out / "config.json").exists():
        raise OcraError(f"{out} holds weights already; choose another --out.")
    model = import_authors(checkpoint, experiment.model)
    about = {
        "name": experiment.name,
        "title": experiment.description,
        "task": experiment.task.to_dict(),
        "masked": experiment.loss.reconstruction_mask != "none",
        "source": f"imported from the authors' checkpoint {checkpoint.name}",
    }
    model.save_pretrained(out, ModelInfo.from_dict(about, model.config))
    print(f"{out}: {model.parameter_count:,} parameters of {preset}; try: ocra evaluate {out}")


def main(args: list[str]) -> None:
    """Run `ocra import-authors` with these arguments."""
    parse(convert, args, "ocra import-authors")
