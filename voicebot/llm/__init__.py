"""Language models: one module per engine, each giving `voicebot.engines.LanguageModel`."""
