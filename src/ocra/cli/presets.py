"""ocra presets: the experiments of the paper, by name."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from ocra.cli.main import parse
from ocra.config import ModelConfig
from ocra.experiment import Experiment
from ocra.model.ocra import OCRA
from ocra.presets import PRESETS, preset


def presets(
    name: Positional[str] = "",
    /,
    recipe: Literal["default", "paper"] = "default",
    as_json: Annotated[bool, arg(name="json")] = False,
) -> None:
    """List the experiments of the paper, with parameter counts and the paper's error, or show one whole.

    Example: ocra presets multimnist-10

    Args:
        name: Show this one whole.
        recipe: With our settings of training, or the paper's.
        as_json: Print JSON.
    """
    chosen = [preset(name, recipe)] if name else [preset(each, recipe) for each in PRESETS]
    if as_json:
        described = [
            {"parameters": parameter_count(experiment.model), **experiment.to_dict()} for experiment in chosen
        ]
        print(json.dumps(described[0] if name else described, indent=2))
    elif name:
        _show(chosen[0])
    else:
        _list(chosen)


def parameter_count(config: ModelConfig) -> int:
    """Trainable parameters of a network, without making them."""
    with torch.device("meta"):
        return OCRA(config).parameter_count


def _list(experiments: list[Experiment]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("preset", "parameters", "paper's error %", "what it is"):
        table.add_column(title, justify="right" if title == "parameters" else "left")
    for experiment in experiments:
        table.add_row(
            experiment.name,
            f"{parameter_count(experiment.model):,}",
            experiment.paper_error,
            experiment.description,
        )
    Console(highlight=False).print(table)


def _show(experiment: Experiment) -> None:
    """All options of one experiment, as they are written on the command line of `ocra train`."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]{experiment.name}[/]: {experiment.description}.")
    console.print(
        f"{parameter_count(experiment.model):,} parameters; exact error in the paper: {experiment.paper_error} %."
    )
    console.print(f"seed = {experiment.seed}\ninit = {experiment.init}")
    parts = {name: getattr(experiment, name) for name in ("model", "task", "loss", "run")}
    for name, part in parts.items():
        console.print()
        _print_fields(console, name, part)
    for number, stage in enumerate(experiment.stages):
        console.print()
        _print_fields(console, f"stages.{number}", stage)


def _print_fields(console: Console, prefix: str, part: Any) -> None:
    for item in dataclasses.fields(part):
        value = getattr(part, item.name)
        shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
        console.print(f"{prefix}.{item.name} = {shown}", markup=False)


def main(args: list[str]) -> None:
    """Run `ocra presets` with these arguments."""
    parse(presets, args, "ocra presets")
