"""ocra lab: experiments of vision science on the model, and the model beside people."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from ocra.cli.main import Device, columns, parse
from ocra.files import printable
from ocra.lab.experiments import EXPERIMENTS
from ocra.lab.running import UNTIL, table
from ocra.lab.running import run as run_experiment
from ocra.model.interventions import lesion_of
from ocra.prediction import given

DESCRIPTION = "Run experiments of vision science on the model. Example: ocra lab run overlap --trials 200"


def list_() -> None:
    """List the experiments, with the question that each one asks.

    Example: ocra lab list
    """
    print(
        columns(
            [(name, f"{kind.title}: {kind.question}") for name, kind in EXPERIMENTS.items()],
            ("name", "question"),
        )
    )


def run(
    name: Positional[str],
    /,
    weights: tuple[str, ...] = (),
    trials: int = 200,
    out: Path | None = None,
    seed: int = 0,
    glimpses: tuple[int, ...] = (),
    until: float = UNTIL,
    routings: tuple[int, ...] = (),
    lesion: tuple[str, ...] = (),
    cue: tuple[float, float] | None = None,
    device: Device | None = None,
) -> None:
    """Run an experiment: trials.csv, summary.csv with 95 % intervals, a figure, a page of text.

    Examples:

    ocra lab run crowding --weights cluttered-5 --trials 300 --out crowding

    ocra lab run my_module:MyExperiment --weights multimnist-3 multimnist-10

    ocra lab run overlap --routings 1 3 --lesion decoder-memory --cue 22 22

    Args:
        name: One of 'ocra lab list', or package.module:Class of your own.
        weights: Names of shipped weights, or folders, drawn side by side. Default: multimnist-3, or cluttered-5
            where the experiment needs large images.
        trials: Trials in each condition.
        out: Folder to write. Default: lab-NAME.
        seed: Another seed gives other scenes.
        glimpses: Number of glimpses in all conditions, if not the one the model was trained with; several are run side
            by side.
        until: Margin between the answer and the next class at which an answer counts as decided.
        routings: Number of routings in all conditions, if not the model's own; several are run side by side.
        lesion: Parts to silence in all conditions: encoder-memory, decoder-memory, feedback, or numbers of capsules;
            the intact model is run beside it.
        cue: Centre (x, y) of the first window in all conditions, in pixels; the free one is run beside it.
        device: Where to compute: cpu, cuda or mps.
    """
    from ocra.lab.experiments import find_experiment

    experiment = find_experiment(name)
    chosen = weights or ("cluttered-5" if experiment.smallest > 36 else "multimnist-3",)
    target = out or Path(f"lab-{experiment.name or 'experiment'}")
    outcome = run_experiment(
        experiment, list(chosen), trials=trials, seed=seed, out=target, until=until, device=device,
        **given(
            glimpses=list(glimpses) or None, routings=list(routings) or None,
            lesion=[None, lesion_of(lesion)] if lesion else None, cue=[None, cue] if cue else None,
        ),
    )  # fmt: skip
    titles, rows = table(experiment, outcome.summary)
    print(columns(rows, titles))
    print(printable(f"Tables, figure and page are in {target}."))


def errors(
    weights: Positional[tuple[str, ...]],
    /,
    trials: int = 50,
    images: int = 5_000,
    corruption: str | None = None,
    severity: float = 3.0,
    seed: int = 0,
    out: Path = Path("lab-errors"),
    device: Device | None = None,
) -> None:
    """Make an experiment for people: whose error looks more human?

    Looks for images that two models get wrong, each with another answer, and writes them as a two-alternative choice:
    experiment.html (a page that runs by itself and hands out responses.csv), images, trials.csv for PsychoPy and
    jspsych.json. 'ocra lab choices' sums up the responses.

    Example: ocra lab errors multimnist-3 multimnist-10 --corruption spatter --severity 1 --trials 40

    Args:
        weights: Names of shipped weights, or folders: two, or more for a choice between each pair.
        trials: How many trials to find.
        images: How many images to show the models at most.
        corruption: Damage to the images, such as spatter or motion-blur (docs/lab). Default: none.
        severity: Of the damage, from 0 to 5.
        seed: Another seed gives other images.
        out: Folder to write.
        device: Where to compute: cpu, cuda or mps.
    """
    from ocra.lab.choices import find_choices, save_choices

    found = find_choices(
        list(weights),
        trials=trials,
        images=images,
        corruption=corruption,
        severity=severity,
        seed=seed,
        device=device,
    )
    page = save_choices(found, out)
    short = f" ({trials} were asked for: raise --images or --severity)" if len(found) < trials else ""
    print(printable(f"{len(found)} trial{'s' * (len(found) > 1)}{short}. Open {page} in a browser."))


def choices(responses: Positional[tuple[Path, ...]], /) -> None:
    """Sum up what people chose in the experiment of 'ocra lab errors': how often each model's error.

    Example: ocra lab choices anna.csv ben.csv

    Args:
        responses: The responses.csv of each person.
    """
    from ocra.lab.choices import score_choices

    rows = [
        (
            r["model"],
            r["against"],
            str(r["trials"]),
            f"{r['share']:.1%}",
            f"{r['low']:.1%} to {r['high']:.1%}",
        )
        for r in score_choices(responses)
    ]
    print(columns(rows, ("model", "against", "trials", "chosen", "95 % interval")))


def human(
    data: Positional[Literal["attention-mnist"]],
    /,
    file: Path,
    weights: str,
    glimpses: int | None = None,
    out: Path = Path("lab-attention-mnist"),
    device: Device | None = None,
) -> None:
    """Compare the model with people: accuracy by glimpse, where they look, how alike their scanpaths are.

    attention-mnist: 1,736 sequences of twelve clicks by people who uncovered MNIST digits piece by piece (Baruah and
    others 2023, Scientific Reports 13:3305). The file is published without a licence: bring your own copy.

    Example: ocra lab human attention-mnist --file mnist.json --weights runs/mnist-6

    Args:
        data: Which data of people.
        file: The published file, mnist.json or mnist.json.gz.
        weights: A network for single digits on 28×28 pixels; 'ocra train mnist-6' makes one in minutes.
        glimpses: Number of glimpses, if not the one the model was trained with.
        out: Folder for accuracy.csv, similarity.csv and the figure.
        device: Where to compute: cpu, cuda or mps.
    """
    from ocra.lab.human import compare_with_people, format_comparison, read_attention_mnist

    found = compare_with_people(weights, read_attention_mnist(file), glimpses=glimpses, device=device)
    found.save(out)
    print(columns(format_comparison(found), ("measure", "who", "mean", "95 % interval")))
    print(printable(f"Tables and figure are in {out}."))


COMMANDS: dict[str, Callable[..., object]] = {
    "list": list_,
    "run": run,
    "human": human,
    "errors": errors,
    "choices": choices,
}


def main(args: list[str]) -> None:
    """Run `ocra lab` with these arguments."""
    parse(COMMANDS, args, "ocra lab", description=DESCRIPTION)
