"""Workflow steps."""
