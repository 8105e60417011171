"""Stop runs at random moments, in every way there is, and resume them: each ends as one never stopped, bit for bit.

`make torture` runs this file; `python tests/training/torture.py --kills 50 --seed 7` stops at the moments of that seed.
Each run is forked from this process, which has imported everything, so that a start takes no time; helpers are not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import torch._dynamo  # noqa: F401  (as training imports it)
from tiny_runs import LONGER, losses, same_weights, wait_for_images, write_config

import ocra.cli.train
import ocra.training.own_images
import ocra.training.run  # noqa: F401
from ocra.cli.main import main as ocra_command

# The stages of LONGER, some two seconds of them, with a checkpoint every few steps.
TORTURED = replace(
    LONGER,
    stages=tuple(replace(stage, images=32 * steps) for stage, steps in zip(LONGER.stages, (15, 25), strict=True)),
    run=replace(LONGER.run, validate_every_images=32 * 10),
)  # fmt: skip
MOMENTS = ("before its first checkpoint", "while it trains", "while it ends")
WAYS = ("SIGKILL", "SIGKILL of a helper", "SIGKILL of all", "SIGTERM", "SIGINT")


class Forked:
    """A command of the program in a process of its own."""

    def __init__(self, words: Iterable[object], log: Path) -> None:
        self.log, self.code = log, None if (pid := os.fork()) else _become(list(map(str, words)), log)
        self.pid = pid

    def poll(self) -> int | None:
        """The exit code, if it has ended; that of a signal is negative."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def finish(self) -> tuple[int, str]:
        """Wait for its end: exit code and output."""
        wait_until(lambda: self.poll() is not None, "the run does not end")
        return self.code or 0, self.log.read_text()


def _become(words: list[str], log: Path) -> NoReturn:
    """Be the program with these words, from here on."""
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        code = ocra_command(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Torture:
    """Runs of one experiment by so many processes, and the one that was never stopped."""

    def __init__(self, folder: Path, processes: int, chance: random.Random) -> None:
        folder.mkdir(parents=True)
        self.processes, self.chance, self.log = processes, chance, folder / "log.txt"
        self.config = write_config(folder / "tortured.json", TORTURED)
        self.whole = folder / "whole"
        code, said = self.go_on(self.whole).finish()
        assert code == 0, said

    def go_on(self, folder: Path) -> Forked:
        """Resume a run, or start it if there is none yet."""
        self.log.write_text("")
        new = ("--config", self.config, "--out", folder, "--processes", self.processes)
        begun = (folder / "config.json").exists()
        return Forked(("train", *(("--resume", folder) if begun else new), "--quiet"), self.log)

    def stop_once(self, folder: Path, moment: str, way: str) -> None:
        """Start or resume a run, and stop it at a moment."""
        process = self.go_on(folder)
        wait_for_moment(process, folder, moment, self.chance)
        helpers = children(process.pid)
        stop(process, helpers, way)
        code, said = process.finish()
        # Where there was no helper the run itself was killed; and a run may have ended just before.
        expected = {"SIGTERM": {143, -15}, "SIGINT": {130}, "SIGKILL of a helper": {1, -9}}
        assert code in expected.get(way, {-9}) | {0}, f"exit code {code}: {said}"
        assert "Traceback" not in said and "GLHF" not in said, said
        assert code != 1 or said.count("error: ") == 1, said
        wait_until(lambda: not any(map(is_running, helpers)), "a helper outlives its run")

    def check(self, folder: Path) -> None:
        """Resume a run until it has ended, and compare all that it left with the run that was never stopped."""
        code, said = self.go_on(folder).finish()
        assert code == 0, said
        assert same_weights(self.whole, folder), "other weights"
        assert losses(self.whole) == losses(folder), "other losses"
        for which in ("best", "last"):
            files = [each / "weights" / which / "config.json" for each in (self.whole, folder)]
            assert files[0].read_text() == files[1].read_text(), f"another config of the {which} weights"
        ends = [json.loads((each / "summary.json").read_text()) for each in (self.whole, folder)]
        same = ("test", "processes", "images", "step", "best_images", "best_error", "config")
        assert [ends[0][name] for name in same] == [ends[1][name] for name in same], "another summary"
        assert not list(folder.rglob("*.part*")), "files that were not finished"


def torture(folder: Path, kills: int, seed: int, processes: tuple[int, ...] = (1, 2)) -> None:
    """Stop runs `kills` times in all, one to three times each, and check each."""
    chance = random.Random(seed)
    tortures = {count: Torture(folder / f"{count}", count, chance) for count in processes}
    done = number = 0
    while done < kills:
        number += 1
        count = processes[number % len(processes)]
        times = min(chance.choice((1, 1, 2, 3)), kills - done)
        plan = [(chance.choice(MOMENTS), chance.choice(WAYS)) for _ in range(times)]
        told = ", then ".join(f"{way} {moment}" for moment, way in plan)
        print(f"{done + 1:3}/{kills}  {count} process{'es' * (count > 1)}: {told}", flush=True)
        for moment, way in plan:
            tortures[count].stop_once(folder / f"{count}" / f"run-{number}", moment, way)
        tortures[count].check(folder / f"{count}" / f"run-{number}")
        done += times


def wait_for_moment(process: Forked, folder: Path, moment: str, chance: random.Random) -> None:
    """Wait for a random instant of a kind; a run that has ended waits for nothing."""
    if moment == "before its first checkpoint":
        ended_or = lambda: process.poll() is not None or (folder / "config.json").exists()  # noqa: E731
        wait_until(ended_or, "the run does not start")
        time.sleep(chance.uniform(0, 0.3))
    elif moment == "while it trains":
        wait_for_images(process, folder, chance.randrange(32, TORTURED.images))
        time.sleep(chance.uniform(0, 0.05))
    else:
        wait_for_images(process, folder, TORTURED.images)
        time.sleep(chance.uniform(0, 0.2))


def stop(process: Forked, helpers: list[int], way: str) -> None:
    """Stop a run and its helpers in one of the ways."""
    if way in ("SIGTERM", "SIGINT"):
        victims, number = [process.pid], getattr(signal, way)
    else:
        kinds = {"SIGKILL": [process.pid], "SIGKILL of all": [process.pid, *helpers]}
        victims, number = kinds.get(way, helpers[:1] or [process.pid]), signal.SIGKILL
    if process.poll() is None:  # else its number may be another's
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, number)


def children(process: int) -> list[int]:
    """The processes that a process has started and that help with its run."""
    listed = subprocess.run(["pgrep", "-P", str(process), "-f", "help_out"], capture_output=True, text=True)
    return [int(number) for number in listed.stdout.split()]


def is_running(process: int) -> bool:
    """Whether there is such a process that has not ended."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True).stdout
    return bool(state.strip()) and not state.startswith("Z")


def wait_until(happened: Callable[[], bool], otherwise: str) -> None:
    """Wait for something, up to five minutes: the machine may be busy."""
    deadline = time.monotonic() + 300
    while not happened():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.005)


def main() -> int:
    """Torture as the command line says; 0 if all held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="ocra-torture-"))
    try:
        torture(folder, asked.kills, asked.seed)
    except AssertionError as error:
        print(f"FAILED with --seed {asked.seed}: {error}\nThe runs are in {folder}.", file=sys.stderr)
        return 1
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    print(f"{asked.kills} of {asked.kills} kills: every run ended as one that was never stopped.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
