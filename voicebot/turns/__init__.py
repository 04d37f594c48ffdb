"""Turn-taking: the sans-IO core, and the voice activity detector that feeds it."""
