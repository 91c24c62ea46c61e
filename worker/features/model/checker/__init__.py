"""Checks of model output in a child process."""
