"""Several processes that train one model: who takes part, and how they talk to each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ocra.errors import OcraError, UsageError
from ocra.files import cores

JOIN = "OCRA_JOIN"  # rank, size and port, for the processes this program starts itself
HELPER = (
    "import sys; from ocra.training.run import help_out; sys.exit(help_out(sys.argv[1], int(sys.argv[2])))"
)
SHARED_MEMORY = Path("/dev/shm")  # Linux keeps it in memory; elsewhere messages have to do
# Below this many images a process spends its time on messages, not on images.
FEWEST_IMAGES = 16


class PeerLost(OcraError):
    """Another process of the run ended, so this one cannot go on."""


@dataclass(frozen=True)
class Group:
    """The processes of a run, seen from one of them."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    one_machine: bool = True

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes; the tensor itself may be overwritten."""
        return self._call(dist.all_reduce, tensor)

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """The tensor of one process, in all of them; the tensor itself may be overwritten."""
        return self._call(dist.broadcast, tensor, source)

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.all_reduce(torch.zeros(1))

    def broadcast_json(self, value: Any, source: int = 0) -> Any:
        """A JSON value of one process, in all of them."""
        content = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        length = self.broadcast(torch.tensor([len(content)]), source)
        mine = content if self.rank == source else torch.zeros(int(length), dtype=torch.uint8)
        return json.loads(bytes(self.broadcast(mine, source).tolist()))

    def buffers(self, count: int, length: int) -> tuple[Tensor, bool]:
        """Zeros [count, length], float32, and whether they are memory that all processes share."""
        memory = _shared_memory(self, count, length)
        if memory is None:
            return torch.zeros(count, length, device=self.device), False
        return memory, True

    def _call(self, function: Any, tensor: Tensor, *args: Any) -> Tensor:
        """Call a collective function, on the device of the group."""
        if self.size == 1:
            return tensor
        local = tensor.to(self.device)
        try:
            function(local, *args)
        except RuntimeError:
            raise PeerLost("Another process of this run has ended.") from None
        return local.to(tensor.device)


def choose_device(wanted: str, local_rank: int = 0) -> torch.device:
    """The device of a process: a GPU of its own where there is one, else the CPU."""
    if wanted not in ("auto", "cpu", "cuda"):
        raise UsageError(f"There is no device '{wanted}'; choose auto, cpu or cuda.")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UsageError("PyTorch finds no CUDA GPU on this machine; use --device cpu.")
    if wanted != "cpu" and torch.cuda.is_available():
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device("cpu")


def choose_processes(wanted: int, device: torch.device, batch: int) -> int:
    """How many processes share a batch: as many as asked for; for 0 one on each core or GPU."""
    if wanted < 0:
        raise UsageError(f"--processes must be at least 1, or 0 for one on each core, not {wanted}.")
    check_share(wanted, batch)
    if device.type == "cuda":
        return wanted or torch.cuda.device_count()
    return wanted or max(1, min(cores(), batch // FEWEST_IMAGES))


def check_share(processes: int, batch: int) -> None:
    """Refuse more processes than there are images in a batch."""
    if processes > batch:
        raise UsageError(f"{processes} processes cannot share a batch of {batch} images; use fewer.")


def count_processes(wanted: int, device: str, batch: int) -> int:
    """How many processes a run will have; a device or a number that cannot be is refused.

    Under torchrun its group is taken as it is.
    """
    if under_torchrun():
        return int(os.environ["WORLD_SIZE"])
    return choose_processes(wanted, choose_device(device), batch)


def under_torchrun() -> bool:
    """Whether torchrun, or a program like it, has started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def further_process() -> bool:
    """Whether this process was started, by torchrun or by us, to help another one that leads the run."""
    return JOIN in os.environ or int(os.environ.get("RANK", 0)) > 0


@contextmanager
def process_group(processes: int, device: str, batch: int = 1) -> Iterator[Group]:
    """The group of a run: that of the process which started this one, or torchrun's, or one started here."""
    if JOIN in os.environ:
        rank, size, port = map(int, os.environ[JOIN].split(":"))
        store = dist.TCPStore("127.0.0.1", port, size, is_master=False)
        store.set(f"ready {rank}", "")
        with joined(choose_device(device, rank), store=store, rank=rank, world_size=size) as group:
            yield group
    elif under_torchrun():
        with joined(choose_device(device, int(os.environ.get("LOCAL_RANK", 0)))) as group:
            yield group
    else:
        place = choose_device(device)
        count = choose_processes(processes, place, batch)
        if count == 1:
            with _threads(place):
                yield Group(0, 1, place)
            return
        store = dist.TCPStore("127.0.0.1", 0, count, is_master=True, wait_for_workers=False)
        with _workers(count, store, device), joined(place, store=store, rank=0, world_size=count) as group:
            yield group


@contextmanager
def joined(device: torch.device, **place: Any) -> Iterator[Group]:
    """Meet the other processes, here or, without a place, where torchrun says."""
    # Its functions have the group of the moment it is imported as default, and would keep it and its threads for ever:
    # the compiler's import of it comes too late, and the threads may abort the process when it ends.
    import torch.distributed.nn.functional  # noqa: F401

    if place:
        # The host's own name may resolve to nothing in a container; the loopback interface is always there.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(minutes=30), **place)
    try:
        size = dist.get_world_size()
        one_machine = bool(place) or int(os.environ.get("LOCAL_WORLD_SIZE", 0)) == size
        with _threads(device):
            yield Group(dist.get_rank(), size, device, one_machine)
    finally:
        dist.destroy_process_group()


@contextmanager
def _threads(device: torch.device) -> Iterator[None]:
    """One thread for each process, unless OMP_NUM_THREADS says otherwise: on a CPU the processes share the work.

    Threads that wait for each other within every operation are slower, and far slower on a busy machine.
    Numbers too small to be normal count as zero: Adam's memory of a unit that is never used would fade to those,
    and they are slow as well.
    """
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


@contextmanager
def _workers(count: int, store: dist.TCPStore, device: str) -> Iterator[None]:
    """Start the other processes and wait for them; they end with this one, whatever becomes of it."""
    command = [sys.executable, "-c", HELPER, device, str(os.getpid())]
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(1, count):
            environment = {
                "TORCH_CPP_LOG_LEVEL": "ERROR",
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),  # a task of one's own may lie beside the script
                JOIN: f"{rank}:{count}:{store.port}",
            }
            # In a session of their own, so that Ctrl-C reaches this process alone, which tells the others.
            workers.append(subprocess.Popen(command, env=environment, start_new_session=True))
        waiting = [f"ready {rank}" for rank in range(1, count)]
        while not store.check(waiting):
            if any(worker.poll() is not None for worker in workers):
                raise OcraError("A process that should help with this run ended at once; try --processes 1.")
            time.sleep(0.02)
        yield
    finally:
        for worker in workers:
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def _shared_memory(group: Group, count: int, length: int) -> Tensor | None:
    """Zeros [count, length] that all processes of one machine see, or None where there is no such memory."""
    if group.size == 1 or not group.one_machine or group.device.type != "cpu":
        return None
    row = -(-length // 1024) * 1024  # whole pages, so that no two processes write to the same one
    name = _reserve(4 * row * count) if group.rank == 0 else None
    name = group.broadcast_json(name)
    if name is None:
        return None
    rows = torch.from_file(name, shared=True, size=row * count).view(count, row)
    group.barrier()  # all have opened it, so its name may go; the memory goes with the last process
    if group.rank == 0:
        os.unlink(name)
    return rows[:, :length]


def _reserve(size: int) -> str | None:
    """A file of zeros in shared memory, or None if there is no room (containers often have 64 MB)."""
    if not SHARED_MEMORY.is_dir() or not hasattr(os, "posix_fallocate"):
        return None
    _clear_dead()
    try:
        handle, name = tempfile.mkstemp(prefix=f"ocra-{os.getpid()}-", dir=SHARED_MEMORY)
    except OSError:
        return None
    try:
        os.posix_fallocate(handle, 0, size)
        return name
    except OSError:
        os.unlink(name)
        return None
    finally:
        os.close(handle)


def _clear_dead() -> None:
    """Remove what processes that were killed before all had opened it have left in shared memory."""
    for path in SHARED_MEMORY.glob("ocra-*-*"):
        process = path.name.split("-")[1]
        if process.isdigit() and not Path("/proc", process).exists():
            with suppress(OSError):
                path.unlink()


class StopSignals:
    """Within the block, a first Ctrl-C or SIGTERM is only remembered; a second one acts at once."""

    def __init__(self) -> None:
        self.caught: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.caught = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __exit__(self, *_: object) -> None:
        self._restore()

    def leave(self) -> None:
        """End the program the way the signal would have ended it.

        Where no signal came to this process, another one of the run was told to stop.
        """
        if self.caught == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + signal.SIGTERM)
