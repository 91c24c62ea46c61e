"""Logs, traces, heartbeats and histograms."""
