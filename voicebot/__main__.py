"""`python -m voicebot`."""

from voicebot.cli import main

main()
