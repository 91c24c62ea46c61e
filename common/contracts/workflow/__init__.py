"""Keys, fields, statuses and operations of workflows."""
