"""What people and programs see of a command: text, tables, JSON, colours, progress, questions."""
