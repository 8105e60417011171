"""What data is there, and whether it is whole."""

import os
from dataclasses import dataclass

from ocra.data.mnist import SHA256, find_mnist, read_verified
from ocra.data.svhn_format import STRUCTURE, find_archive
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
    """One archive, read to its end: it must hold the boxes and as many pictures as the official one."""
    try:
        archive = find_archive(part, root)
    except OcraError as error:
        return Finding(f"svhn {part}", "missing", str(error))
    try:
        names = archive.names()
    except OcraError as error:
        return Finding(f"svhn {part}", "broken", str(error))
    pictures = sum(name.endswith(".png") for name in names)
    if STRUCTURE not in names or pictures != SVHN_PICTURES[part]:
        boxes = "" if STRUCTURE in names else f" and no {STRUCTURE}"
        expected = f"{SVHN_PICTURES[part]:,} expected"
        return Finding(
            f"svhn {part}", "broken", f"{archive.path} has {pictures:,} pictures{boxes}; {expected}."
        )
    return Finding(f"svhn {part}", "verified", f"{archive.path}, {pictures:,} pictures")
