"""Adding up one long vector over the processes of a run, once for each step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ocra.training.distributed import Group, PeerLost
from ocra.training.sampling import share

# Linux keeps it in memory; elsewhere the all-reduce has to do.
SHARED_MEMORY = Path("/dev/shm")


class Channel:
    """A vector for each process and their sum.

    Processes on one machine share the memory of all of them, and each adds up a part: a quarter of the work
    of an all-reduce through sockets, which serves all other groups.
    """

    def __init__(self, group: Group, length: int) -> None:
        self._group = group
        self._rows = _shared_rows(group, length)
        if self._rows is None:
            self.mine = self.total = torch.zeros(length, device=group.device)
        else:
            self.mine, self.total = self._rows[group.rank], self._rows[-1]
            self._part = share(group.rank, group.size, length)

    @property
    def in_memory(self) -> bool:
        """Whether adding up costs no more than going through memory: on one machine, or alone."""
        return self._rows is not None or self._group.size == 1

    def add_up(self) -> Tensor:
        """The sum over all processes: float32 [length]. Read it, but write to `mine` only."""
        if self._rows is None:
            return self._group.sum(self.total)
        self._group.meet()  # all vectors are written
        torch.sum(self._rows[:-1, self._part], 0, out=self.total[self._part])
        self._group.meet()  # all parts are added up
        return self.total


class SharedMatrices:
    """Matrices [rows, columns] by name, of which each process works out some rows, and all have all.

    Without shared memory a process works out all rows by itself, which is faster than asking for them.
    """

    def __init__(self, group: Group, shapes: dict[str, torch.Size]) -> None:
        length = sum(shape.numel() for shape in shapes.values())
        channel = Channel(group, length)
        if not channel.in_memory:
            group = Group(device=group.device)
            channel = Channel(group, length)
        self._channel, self._rank = channel, group.rank
        self._parts = {
            name: [share(rank, group.size, shape[0]) for rank in range(group.size)]
            for name, shape in shapes.items()
        }
        self._mine, self._whole = _views(channel.mine, shapes), _views(channel.total, shapes)

    def make(self, rows: Callable[[str, slice], Tensor]) -> dict[str, Tensor]:
        """All matrices, to be read only, from a function that works out some rows of one of them."""
        for name, parts in self._parts.items():
            self._mine[name][parts[self._rank]] = rows(name, parts[self._rank])
        try:
            self._channel.add_up()  # what is not a process's own has stayed zero
        except PeerLost:
            # The next step will meet it again and end the run; this one is half made and has to be finished.
            for name, parts in self._parts.items():
                for part in parts:
                    self._whole[name][part] = rows(name, part)
        return self._whole


def _views(flat: Tensor, shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
    """Matrices of these shapes one after the other in a vector."""
    parts = flat.split([shape.numel() for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def _shared_rows(group: Group, length: int) -> Tensor | None:
    """Memory [processes + 1, length] that all processes see, or None where there is no such memory."""
    if group.size == 1 or not group.one_machine or group.device.type != "cpu":
        return None
    row = -(-length // 1024) * 1024  # whole pages, so that no two processes write to the same one
    name = _reserve(4 * row * (group.size + 1)) if group.rank == 0 else None
    name = group.spread_json(name)
    if name is None:
        return None
    rows = torch.from_file(name, shared=True, size=row * (group.size + 1)).view(group.size + 1, row)
    group.meet()  # all have opened it, so its name may go; the memory goes with the last process
    if group.rank == 0:
        os.unlink(name)
    return rows[:, :length]


def _reserve(size: int) -> str | None:
    """A file of zeros in shared memory, or None if there is no room (containers often have 64 MB)."""
    if not SHARED_MEMORY.is_dir() or not hasattr(os, "posix_fallocate"):
        return None
    try:
        handle, name = tempfile.mkstemp(prefix="ocra-", dir=SHARED_MEMORY)
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
