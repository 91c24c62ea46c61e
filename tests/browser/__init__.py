"""Tests of the dashboard in Chromium, with a real gateway and workers: `make test-browser`."""
