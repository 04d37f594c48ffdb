"""The model catalogue: which models there are, where each comes from, and what its files must be.

`catalogue.yaml` beside this file holds the built-in entries; an operator adds files of the same
form. Every problem a person can mend is a `ModelError`, whose message says what and how.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic.functional_validators import AfterValidator

BUILT_IN = Path(__file__).with_name("catalogue.yaml")


class ModelError(Exception):
    """A model cannot be used or fetched; the message names the model, what is wrong and the mend."""


def _inside(path: str) -> str:
    """A path that stays inside the folder it is joined to: relative, no '..', nothing hidden."""
    if "\\" in path or ":" in path or path != str(PurePosixPath(path)):
        raise ValueError("expected a plain relative path with forward slashes")
    if any(part.startswith(".") or part in ("", "/") for part in PurePosixPath(path).parts):
        raise ValueError("expected a relative path without '..' and without hidden parts")
    return path


Inside = Annotated[str, AfterValidator(_inside)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
# An id becomes a folder name, a file name and a word on the command line: never '.', never a flag.
Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, pattern=r"^[^\n]*$")]
Package = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9][A-Za-z0-9.!+_-]*$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelFile(_Strict):
    """One file of a model."""

    name: Inside
    """Its path in the model's folder."""
    path: Inside
    """Its path in the source: the wheel's member, or the hub repository's file."""
    sha256: Sha256 | None = None
    size: int | None = Field(default=None, ge=0)
    """Bytes."""


class WheelSource(_Strict):
    """A wheel of the package registry. Data is taken out of it; nothing in it is imported or installed."""

    type: Literal["wheel"]
    package: Package
    version: Version
    sha256: Sha256 | None = None
    """Of the whole wheel; absent when a mirror may carry another build of the same version."""


class HubSource(_Strict):
    """A repository of a model hub, fetched by huggingface_hub (which reads HF_ENDPOINT, HF_TOKEN, ...)."""

    type: Literal["hub"]
    repo: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?$")]
    revision: Line = "main"


class Entry(_Strict):
    """One model of the catalogue."""

    id: Id
    kind: Literal["asr", "llm", "tts", "turn", "vad"]
    description: Line
    licence: Line
    provenance: str = Field(min_length=1)
    """Where the model came from, and what a person who deploys it should know."""
    source: Annotated[WheelSource | HubSource, Field(discriminator="type")]
    approx_size: int | None = Field(default=None, gt=0)
    """Bytes, for entries whose files do not all state a size."""
    files: tuple[ModelFile, ...] = ()
    """Empty, for a hub: the repository's whole snapshot."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        names = [file.name for file in self.files]
        if len(set(names)) != len(names):
            raise ValueError("two files have the same name")
        if self.source.type == "wheel" and not self.pinned:
            raise ValueError("a wheel source needs files, each with its sha256 and size")
        if self.approx_size is None and not (self.files and all(f.size is not None for f in self.files)):
            raise ValueError("approx_size (bytes) is required where not every file states its size")
        return self

    @property
    def pinned(self) -> bool:
        """Whether the catalogue alone tells a right file from a wrong one."""
        return bool(self.files) and all(f.sha256 and f.size is not None for f in self.files)

    @property
    def size(self) -> int:
        """Bytes on disk; approximate where the entry says so."""
        return self.approx_size or sum(file.size or 0 for file in self.files)


Catalogue = Mapping[str, Entry]


class _CatalogueFile(_Strict):
    models: tuple[Entry, ...]

    @model_validator(mode="after")
    def _unique(self) -> Self:
        ids = [entry.id for entry in self.models]
        twice = sorted({id_ for id_ in ids if ids.count(id_) > 1})
        if twice:
            raise ValueError(f"the id '{twice[0]}' is there twice")
        return self


def load_catalogue(extra: Sequence[Path] = ()) -> Catalogue:
    """The built-in entries, then those of each file in `extra`; a later entry replaces one of the same id.

    Raises ModelError naming the file, the field and the value that are wrong.
    """
    return {entry.id: entry for file in (BUILT_IN, *extra) for entry in _read(file).models}


def _read(file: Path) -> _CatalogueFile:
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"catalogue {file} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ModelError(f"catalogue {file} is not YAML: {' '.join(str(error).split())}") from None
    try:
        return _CatalogueFile.model_validate(data)
    except ValidationError as error:
        problems = "\n".join(f"  {_explain(item, data)}" for item in error.errors())
        raise ModelError(f"catalogue {file} is wrong; correct it:\n{problems}") from None


def _explain(item: Any, data: object) -> str:
    """One pydantic error as `field: what is wrong (got value)`; the model's id stands for its place."""
    loc: list[str] = []
    for depth, part in enumerate(item["loc"]):
        # Under `source` pydantic adds the union's tag to the path; it is no field of the file.
        tag = depth and item["loc"][depth - 1] == "source" and part in ("wheel", "hub")
        if isinstance(part, int):
            loc.append(f"[{part}]")
        elif not tag:
            loc.append(f".{part}" if loc else str(part))
    field = "".join(loc) or "the file"
    if len(item["loc"]) > 1 and item["loc"][0] == "models":
        model = data["models"][item["loc"][1]] if isinstance(data, dict) else None
        if isinstance(model, dict) and "id" in model:
            field += f" (model '{model['id']}')"
    message = item["msg"].removeprefix("Value error, ")
    if isinstance(item["input"], dict | list | BaseModel):
        return f"{field}: {message}"
    return f"{field}: {message} (got {item['input']!r})"
