"""voicebot: a voice-bot server that answers calls as fast as a person does."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("voicebot")
except PackageNotFoundError:  # a source tree on PYTHONPATH, not installed
    __version__ = "0+source"
