"""The model cache on disk: `<cache>/<id>/<file>`, where a model is, whether it is whole, how it gets in.

Nothing here touches the network. Entries whose hashes the catalogue does not pin (hub entries) are
judged by the record that `pull` leaves in the folder after a whole pull.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from voicebot.models.catalogue import Catalogue, Entry, HubSource, ModelError, ModelFile

RECORD = ".voicebot-pull.json"
CHUNK = 1 << 20

Tick = Callable[[int], None]
"""Called with the number of bytes just read."""


@dataclass(frozen=True)
class FileState:
    """One file of a model in the cache, against what it should be."""

    name: str
    state: Literal["ok", "missing", "wrong"]
    reason: str = ""


class PullRecord(BaseModel):
    """What a whole pull of an unpinned model brought; written last, so it never describes half a model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: HubSource
    files: tuple[ModelFile, ...]


def model_folder(entry: Entry, cache: Path) -> Path:
    return cache / entry.id


def lookup(ref: str, catalogue: Catalogue) -> Entry:
    """The entry of an id. Raises ModelError, with near matches, for an unknown one."""
    if ref in catalogue:
        return catalogue[ref]
    near = difflib.get_close_matches(ref, catalogue, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(m) for m in near)}?" if near else "see `voicebot models list`"
    raise ModelError(f"model '{ref}' is neither in the catalogue nor a file or folder that exists: {hint}")


def local_path(ref: str, catalogue: Catalogue) -> Path | None:
    """The path that `ref` writes, if it is one: a catalogue id wins over a file of the same bare name.

    Raises ModelError when it is plainly a path, and nothing is there.
    """
    if ref in catalogue:
        return None
    path = Path(ref).expanduser()
    if ref and path.exists():
        return path
    if os.sep in ref or ref.startswith(("~", ".")):
        raise ModelError(f"model '{ref}': there is no such file or folder; correct the path")
    return None


def resolve(ref: str, cache: Path, catalogue: Catalogue) -> Path:
    """Where the model is: a catalogue id gives its folder in the cache, a path itself, unchecked.

    The check is the cheap one (names and sizes). Raises ModelError when the model is not whole there.
    """
    path = local_path(ref, catalogue)
    if path is not None:
        return path
    entry = lookup(ref, catalogue)
    states = check(entry, cache)
    mend = f"run `voicebot models pull {entry.id}`"
    if all(s.state == "missing" for s in states):
        raise ModelError(f"model '{entry.id}' is not in {cache}: {mend}")
    bad = [s for s in states if s.state != "ok"]
    if bad:
        raise ModelError(f"model '{entry.id}' in {cache} is not whole: {describe(bad)}: {mend}")
    return model_folder(entry, cache)


def describe(states: Iterable[FileState]) -> str:
    """The files that are not ok, in one line."""
    return ", ".join(f"{s.name} {s.reason or s.state}" for s in states if s.state != "ok")


def file_in(path: Path, suffix: str) -> Path:
    """`path` itself if it is a file, else the one file in that folder whose name ends in `suffix`.

    Raises ModelError when there is none, or more than one.
    """
    if path.is_file():
        return path
    found = sorted(item for item in path.glob(f"*{suffix}") if item.is_file())
    if len(found) == 1:
        return found[0]
    names = ", ".join(item.name for item in found) or "none"
    raise ModelError(f"model folder {path}: expected one file *{suffix}, found {names}; give the file's path")


def check(entry: Entry, cache: Path) -> list[FileState]:
    """Each file's state by its presence and size alone: milliseconds, for the start of the server."""
    return _judge(entry, cache, lambda path, file: "")


def verify(entry: Entry, cache: Path, progress: Tick | None = None) -> list[FileState]:
    """Each file's state with its whole content hashed; `progress` is called as bytes are read."""

    def hashed(path: Path, file: ModelFile) -> str:
        if file.sha256 is None or sha256_of(path, progress) == file.sha256:
            return ""
        return "has another SHA-256 than it should"

    return _judge(entry, cache, hashed)


def sha256_of(path: Path, progress: Tick | None = None) -> str:
    """The file's SHA-256, read in chunks. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            if progress:
                progress(len(chunk))
    return digest.hexdigest()


def _judge(entry: Entry, cache: Path, deeper: Callable[[Path, ModelFile], str]) -> list[FileState]:
    folder = model_folder(entry, cache)
    files, unknown = _wanted(entry, folder)
    return unknown or [_state(folder / file.name, file, deeper) for file in files]


def _wanted(entry: Entry, folder: Path) -> tuple[Sequence[ModelFile], list[FileState]]:
    """The files that must be there; or, where no one can say which, that fact as states."""
    if entry.pinned or entry.source.type != "hub":
        return entry.files, []
    names = [file.name for file in entry.files] or ["(all files)"]
    try:
        record = PullRecord.model_validate_json((folder / RECORD).read_bytes())
    except FileNotFoundError:
        if not folder.is_dir():
            return (), [FileState(name, "missing") for name in names]
        reason = "was not pulled whole (to use files of your own, write their path instead of the id)"
        return (), [FileState(name, "wrong", reason) for name in names]
    except (OSError, ValidationError):
        return (), [FileState(RECORD, "wrong", "cannot be read")]
    if record.source != entry.source or not {f.name for f in entry.files} <= {f.name for f in record.files}:
        return (), [FileState(RECORD, "wrong", "is of another source or revision than the catalogue's")]
    # A hash that the catalogue gives counts for more than the one found at the pull.
    given = {f.name: f for f in entry.files if f.sha256}
    return [given.get(f.name, f) for f in record.files], []


def _state(path: Path, file: ModelFile, deeper: Callable[[Path, ModelFile], str]) -> FileState:
    try:
        if not path.is_file():
            return FileState(file.name, "missing")
        size = path.stat().st_size
        if file.size is not None and size != file.size:
            return FileState(file.name, "wrong", f"has {size} bytes instead of {file.size}")
        reason = deeper(path, file)
    except OSError as error:
        return FileState(file.name, "wrong", f"cannot be read: {error.strerror or error}")
    return FileState(file.name, "wrong" if reason else "ok", reason)


def install(new: Path, entry: Entry, cache: Path, aside: Path) -> None:
    """Makes the finished folder `new` the model's folder; the one there before goes to `aside`.

    All three lie on one file system. Raises OSError.
    """
    for root, _, names in os.walk(new):  # on the disk before a rename makes it visible
        for name in names:
            _sync(Path(root, name))
        _sync(Path(root))
    folder = model_folder(entry, cache)
    if os.path.lexists(folder):
        # A stop between the two renames leaves no folder at all: absent, not half.
        os.replace(folder, aside)
    os.replace(new, folder)
    _sync(cache)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def bytes_in(folder: Path) -> int:
    """Bytes of the files below `folder`; files that vanish meanwhile count nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total
