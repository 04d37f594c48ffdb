"""The models: the catalogue, the cache on disk, and fetching into it."""

from voicebot.models.catalogue import Catalogue, Entry, ModelError, load_catalogue
from voicebot.models.pull import PullEvent, pull
from voicebot.models.store import FileState, check, file_in, resolve, verify

__all__ = [
    "Catalogue",
    "Entry",
    "FileState",
    "ModelError",
    "PullEvent",
    "check",
    "file_in",
    "load_catalogue",
    "pull",
    "resolve",
    "verify",
]
