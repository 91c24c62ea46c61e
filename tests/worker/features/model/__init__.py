"""Tests of the model client with scripted servers."""
