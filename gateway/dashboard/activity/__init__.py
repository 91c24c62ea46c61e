"""The live feed of the dashboard."""
