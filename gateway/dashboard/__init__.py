"""The dashboard at /ui: static files, sign-in sessions and live updates."""
