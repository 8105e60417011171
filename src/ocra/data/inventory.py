"""What data is there, and whether it is whole."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ocra.data.mnist import SHA256, find_mnist, read_verified
from ocra.data.svhn_format import Archive, find_archive, read_names
from ocra.errors import OcraError

SVHN_PICTURES = {"train": 33_402, "test": 13_068, "extra": 202_353}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for."""

    what: str
    state: str
    """verified, missing, or broken"""
    detail: str


def check_mnist(root: str | os.PathLike[str] | None = None) -> list[Finding]:
    """Each of the four files, unpacked and compared with its checksum."""
    try:
        paths = find_mnist(root)
    except OcraError as error:
        return [Finding("mnist", "missing", str(error))]
    findings = []
    for name in SHA256:
        try:
            read_verified(paths[name], name)
            findings.append(Finding(f"mnist {name}", "verified", str(paths[name])))
        except OcraError as error:
            findings.append(Finding(f"mnist {name}", "broken", str(error)))
    return findings


def check_svhn(part: str, root: str | os.PathLike[str] | None = None) -> Finding:
    """One archive, found and read to its end."""
    try:
        archive = find_archive(part, root)
    except OcraError as error:
        return Finding(f"svhn {part}", "missing", str(error))
    fault = fault_of_archive(archive, part)
    if fault:
        return Finding(f"svhn {part}", "broken", fault)
    return Finding(f"svhn {part}", "verified", f"{archive.path}, {SVHN_PICTURES[part]:,} pictures")


def fault_of_archive(archive: Archive, part: str) -> str | None:
    """What is wrong with an archive, if anything: it must hold the boxes, and all pictures they are of, whole."""
    with tempfile.TemporaryDirectory() as folder:
        structure = Path(folder) / "structure"
        try:
            whole = archive.whole_pictures(structure)
            named = read_names(structure)
        except OcraError as error:
            return str(error)
    good = sum(name in whole for name in named)
    if good == len(named) == SVHN_PICTURES[part]:
        return None
    return f"{archive.path} has {good:,} whole pictures with boxes; {SVHN_PICTURES[part]:,} expected."
