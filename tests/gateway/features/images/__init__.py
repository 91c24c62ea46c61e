"""Tests of the image API."""
