"""Measures Sluice against naive programs and against the limits of its parts, side by side."""
