"""Synthesizers: one module per engine, each giving `voicebot.engines.Synthesizer`."""
