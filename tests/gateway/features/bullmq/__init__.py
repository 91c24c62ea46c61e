"""Tests of the BullMQ API."""
