"""Replaying recorded calls through the same call code."""
