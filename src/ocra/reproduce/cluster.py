"""Runs side by side through Ray: one task for each run, restarted where its worker dies."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ocra.errors import OcraError, UsageError
from ocra.experiment import Experiment
from ocra.reproduce.runner import Say, carry_out, keep, outcome

RESTARTS = 5
# Runs talk through files; what goes through Ray's store are their names and settings.
STORE_BYTES = 100_000_000


def join(address: str) -> Any:
    """The ray module, connected to `address`; 'auto' is a cluster that runs here, or else one started now."""
    try:
        import ray
        from ray.exceptions import RayError
    except ImportError:
        raise OcraError("--ray needs Ray; run: pip install 'ocra-vision[ray]'.") from None
    if ray.is_initialized():
        return ray
    _check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster started here reports to nobody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning on every start
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        if address != "auto":
            reason = (str(error).strip().splitlines() or ["no answer"])[0]
            raise OcraError(f"There is no Ray cluster at {address}: {reason}") from None
        ray.init(include_dashboard=False, object_store_memory=STORE_BYTES, **options)
    return ray


def _check_address(address: str) -> None:
    """Refuse an address nobody answers at; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address in ("auto", "local"):
        return
    if not host or not port.isdigit():
        raise UsageError(f"--ray takes auto or an address such as 10.0.0.1:6379, not '{address}'.")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise OcraError(f"There is no Ray cluster at {address}: {error}.") from None


def run_side_by_side(
    runs: dict[str, Experiment], folder: Path, results: Path, *, address: str = "auto", processes: int = 1,
    say: Say = print, after: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Make all runs on a Ray cluster whose machines share the folder of the runs.

    A run uses one process with one thread unless told otherwise, so that a machine takes one run per core. A
    run whose worker dies is started again and goes on from its checkpoint. The others go on whatever becomes
    of one of them; what went wrong is said at the end.
    """
    ray = join(address)
    resources = ray.cluster_resources()
    needs = {"num_cpus": max(1, processes), "num_gpus": max(1, processes) if resources.get("GPU") else 0}
    task = ray.remote(**needs, max_retries=RESTARTS)(_run)
    waiting = {
        task.remote(experiment.to_dict(), str((folder / name).resolve()), max(1, processes)): name
        for name, experiment in runs.items()
    }
    say(f"{len(runs)} runs on {int(resources.get('CPU', 0))} cores of a Ray cluster")
    problems = []
    try:
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            name = waiting.pop(done)
            problem = _finish(ray, done, folder / name, results, say)
            if problem:
                problems.append(problem)
                say(problem)
            after()
    finally:
        for reference in waiting:
            ray.cancel(reference)
    if problems:
        raise OcraError(f"{len(problems)} of {len(runs)} runs did not end: {problems[0]}")


def _run(experiment: dict[str, Any], folder: str, processes: int) -> str:
    """What a worker does: one run, from wherever it is to its end."""
    import torch

    torch.set_num_threads(1)
    return carry_out(Experiment.from_dict(experiment), Path(folder), processes, quiet=True)


def _finish(ray: Any, reference: Any, folder: Path, results: Path, say: Say) -> str:
    """Record a run that has ended; returns what went wrong, if anything did."""
    from ray.exceptions import RayError, RayTaskError

    try:
        record = keep(folder, results, folder.name, failed=ray.get(reference))
    except RayTaskError as error:
        return f"{folder.name}: {error.cause if isinstance(error.cause, OcraError) else error}"
    except (RayError, OcraError) as error:
        return f"{folder.name}: {error}"
    say(f"{folder.name}: {outcome(record)}")
    return ""
