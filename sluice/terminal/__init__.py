"""Output of the commands: tables, colours, progress and safe text."""
