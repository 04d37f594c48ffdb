"""PCM on its way: frames, resampling, recordings as files. PCM is int16 mono throughout."""
