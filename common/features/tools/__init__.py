"""Tools: the lists that workers publish."""
