"""The dashboard in a real browser, on a real gateway with real workers: `make test-browser`."""
