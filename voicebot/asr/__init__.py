"""Recognizers: one module per engine, each giving `voicebot.engines.Recognizer`."""
