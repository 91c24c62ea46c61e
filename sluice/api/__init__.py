"""Builds requests of the HTTP API and parses responses; no network access."""
