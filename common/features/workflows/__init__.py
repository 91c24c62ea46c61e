"""Workflow definitions, records and scripts."""
