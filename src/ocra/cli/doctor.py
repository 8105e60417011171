"""ocra doctor: whether this machine has what the program needs, and what to do about what it lacks.

It is asked when something is broken, so everything is imported where it is looked at, and nothing that goes wrong
there ends it.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ocra.errors import OcraError
from ocra.files import cache_folder, cores, printable, read_json

DISTRIBUTION = "ocra-vision"
LEAST_DISK, LEAST_SHARED = 1e9, 64e6
"""Bytes below which room is said to be short: for runs and prepared data, for gradients that processes share."""
MOST_FILES = 20_000
"""Files of the cache that are counted; more would take long."""
UNUSED_EXTRAS = ("dev", "docs")
"""Extras that only those need who work on the package."""


@dataclass(frozen=True)
class Finding:
    """What was found of one thing."""

    name: str
    state: Literal["ok", "missing", "broken"]
    """missing: the program works without it; broken: it does not."""
    detail: str
    advice: str = ""
    """What to do, where there is something to do."""


def main(words: Sequence[str]) -> None:
    """Look at everything, print what was found; an OcraError if something essential is broken."""
    parser = argparse.ArgumentParser(
        prog="ocra doctor",
        description="Say whether this machine has what OCRA needs: versions, compiler, processor, weights, data, disk. "
        "The exit code is 1 if something essential is broken. Put what it prints into an issue.",
        epilog="Example: ocra doctor --json",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: name, state, detail, advice of each")
    asked = parser.parse_args(words)
    findings = examine()
    if asked.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        room = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(printable(f"{finding.state:8} {finding.name:{room}}  {finding.detail}"))
            if finding.advice:
                print(printable(f"{'':8} {'':{room}}  → {finding.advice}"))
    if broken := [finding.name for finding in findings if finding.state == "broken"]:
        raise OcraError(f"OCRA cannot be used as it is; broken: {', '.join(broken)}.")
    if not asked.json:
        print("Everything that OCRA needs is here.")


def examine() -> list[Finding]:
    """Look at everything, in the order in which it is told."""
    with ThreadPoolExecutor(1) as beside:
        arithmetic = beside.submit(_guarded(bfloat16))  # it starts a process, and takes longest
        checks = (packages, extras, compiler, weights, mnist, svhn, cache, disk, shared_memory)
        found = [finding for check in (system, processor, *checks) for finding in _guarded(check)()]
        return found[:2] + arithmetic.result() + found[2:]


def _guarded(check: Callable[[], Iterator[Finding]]) -> Callable[[], list[Finding]]:
    """A check that says so when it fails itself."""

    @functools.wraps(check)
    def guarded() -> list[Finding]:
        try:
            return list(check())
        except Exception as error:
            name = check.__name__.replace("_", " ")
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            return [Finding(name, "broken", f"it could not be looked at ({reason})", "Install OCRA again.")]

    return guarded


def system() -> Iterator[Finding]:
    """Version of the program, of Python and of the system."""
    from ocra import __version__

    try:
        importlib.metadata.distribution(DISTRIBUTION)
        how = "installed"
    except importlib.metadata.PackageNotFoundError:
        how = "not installed, run from its source"
    yield Finding(
        "ocra", "ok", f"{__version__}, {how}; Python {platform.python_version()}, {platform.platform()}"
    )


def processor() -> Iterator[Finding]:
    """Cores, memory and the instructions that PyTorch makes use of."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    gpu = f"; CUDA GPU {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "; no CUDA GPU"
    level = torch.backends.cpu.get_cpu_capability()
    yield Finding("processor", "ok", f"{cores()} cores, {memory / 1e9:.0f} GB of memory, {level}{gpu}")


def bfloat16() -> Iterator[Finding]:
    """Whether products in bfloat16 work, and are faster."""
    from ocra.training.run import WORTHWHILE, bf16_gain

    gain = bf16_gain("cpu")
    if gain == 0:
        yield Finding("bfloat16", "missing", "does not work on this processor; training uses 32-bit floats")
        return
    worth = "--run.precision auto chooses it" if gain > WORTHWHILE else "not worth choosing"
    yield Finding("bfloat16", "ok", f"products {gain:.1f} times as fast as in 32-bit floats; {worth}")


def packages() -> Iterator[Finding]:
    """The packages that OCRA cannot do without."""
    needed = [line for line in _requirements() if "extra ==" not in line]
    if not needed:
        needed = ["torch>=2.6", "numpy", "pillow", "h5py", "safetensors", "tyro", "rich", "matplotlib"]
    good = []
    for line in needed:
        name, least = re.match(r"([\w.-]+)[^0-9]*([0-9.]*)", line).groups()  # type: ignore[union-attr]
        version = _version(name)
        if version is None or _numbers(version) < _numbers(least):
            lack = "missing" if version is None else f"{version}, which is older than {least}"
            yield Finding(name, "broken", lack, f"pip install '{line.partition(';')[0].strip()}'")
        else:
            good.append(f"{name} {version}")
    yield Finding("packages", "ok", ", ".join(good))


def extras() -> Iterator[Finding]:
    """The packages of each extra."""
    groups: dict[str, list[str]] = {}
    for line in _requirements():
        if found := re.search(r"^([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line):
            groups.setdefault(found[2], []).append(found[1])
    lacking = [
        extra
        for extra, names in groups.items()
        if extra not in UNUSED_EXTRAS and not all(map(_version, names))
    ]
    here = [extra for extra in groups if extra not in (*lacking, *UNUSED_EXTRAS)]
    if here:
        yield Finding("extras", "ok", ", ".join(here))
    for extra in lacking:
        advice = f"pip install '{DISTRIBUTION}[{extra}]' if you need it"
        yield Finding(f"extra {extra}", "missing", f"needs {', '.join(groups[extra])}", advice)


def compiler() -> Iterator[Finding]:
    """What torch.compile needs: a C++ compiler, and Python's own header files."""
    found = next(filter(None, map(shutil.which, (os.environ.get("CXX") or "", "g++", "clang++"))), None)
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if found is None or not header.is_file():
        what = "no C++ compiler (g++)" if found is None else "Python's header files are not installed"
        advice = "Install your system's packages g++ and python3-dev; until then training is not compiled, and slower."
        yield Finding("compiler", "missing", what, advice)
        return
    place = importlib.util.find_spec("torch")
    if place is not None and " " in (place.origin or ""):
        what = f"PyTorch cannot compile where its path has a space ({_shown(Path(place.origin or ''))})"
        advice = (
            "Install OCRA in an environment without one; until then training is not compiled, and slower."
        )
        yield Finding("compiler", "missing", what, advice)
        return
    said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=10).stdout
    yield Finding("compiler", "ok", (said.splitlines() or [found])[0])


def weights() -> Iterator[Finding]:
    """Whether the shipped weights are there and what they were when they were released."""
    from ocra.model.weights import SHIPPED, content_hash, shipped

    again = f"Install {DISTRIBUTION} again."
    good = []
    for name in shipped():
        try:
            told = read_json(SHIPPED / name / "check.json")
            wanted, found = told.get("content"), content_hash(SHIPPED / name)
        except OcraError as error:
            yield Finding(f"weights {name}", "broken", str(error), again)
            continue
        if found != wanted:
            detail = f"changed since they were released (content {found}, not {wanted})"
            yield Finding(f"weights {name}", "broken", detail, again)
        else:
            good.append(name)
    if good:
        yield Finding("weights", "ok", f"{', '.join(good)}: intact")
    elif not shipped():
        yield Finding("weights", "broken", "none came with this installation", again)


def mnist() -> Iterator[Finding]:
    """Where MNIST lies."""
    from ocra.data.digits import find_mnist

    try:
        folder = next(iter(find_mnist().values())).parent
        yield Finding("MNIST", "ok", f"in {_shown(folder)} (`ocra data check` verifies it)")
    except OcraError:
        yield Finding("MNIST", "missing", "not found", "ocra data fetch mnist, or use --digits glyphs")


def svhn() -> Iterator[Finding]:
    """Where the house numbers lie."""
    from ocra.data.svhn_archive import find_archive

    places, lacking = {}, []
    for part in ("train", "test"):
        try:
            places[part] = _shown(find_archive(part).path)
        except OcraError:
            lacking.append(part)
    for part, place in places.items():
        yield Finding(f"SVHN {part}", "ok", f"in {place}")
    if lacking:
        yield Finding(
            "SVHN", "missing", f"{' and '.join(lacking)} not found", "ocra data fetch svhn (0.7 GB)"
        )


def cache() -> Iterator[Finding]:
    """Where prepared data is kept, and how much there is of it."""
    folder, size, files = cache_folder(), 0, 0
    for place, _, names in os.walk(folder):
        for name in names:
            size, files = size + os.lstat(os.path.join(place, name)).st_size, files + 1
        if files > MOST_FILES:
            break
    more = " and more" if files > MOST_FILES else ""
    state: Literal["ok", "broken"] = "ok"
    advice = ""
    if not os.access(_existing(folder), os.W_OK):
        state, advice = "broken", "It cannot be written to; set OCRA_CACHE to a folder of yours."
    yield Finding("cache", state, f"{_shown(folder)}, {size / 1e6:,.0f} MB{more}", advice)


def disk() -> Iterator[Finding]:
    """Free room where runs and prepared data go."""
    for name, folder in (("disk here", Path.cwd()), ("disk of the cache", _existing(cache_folder()))):
        free = shutil.disk_usage(folder).free
        short = free < LEAST_DISK
        advice = "Runs and prepared data need room: some GB." if short else ""
        yield Finding(name, "missing" if short else "ok", f"{free / 1e9:,.1f} GB free", advice)


def shared_memory() -> Iterator[Finding]:
    """Room for the gradients that processes of one run share."""
    folder = Path("/dev/shm")
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    if free > LEAST_SHARED:
        yield Finding("shared memory", "ok", f"{free / 1e6:,.0f} MB free")
    else:
        advice = (
            "Several processes train more slowly without it; docker run --shm-size=1g gives a container more."
        )
        yield Finding("shared memory", "missing", f"{free / 1e6:,.0f} MB free", advice)


def _requirements() -> list[str]:
    """What the installed package says that it needs."""
    try:
        return importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _version(name: str) -> str | None:
    """The version of an installed package; None if there is none, or it is broken."""
    try:
        return importlib.metadata.version(name) or None
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """2.13.0+cpu as (2, 13, 0)."""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))


def _existing(folder: Path) -> Path:
    """The folder, or the first above it that is there."""
    return next((place for place in (folder, *folder.parents) if place.is_dir()), Path.cwd())


def _shown(path: Path) -> str:
    """A path as a person would write it: an issue need not say whose home it lies in."""
    home = os.path.expanduser("~")
    text = str(path)
    return f"~{text[len(home) :]}" if home != "/" and text.startswith(home + os.sep) else text
