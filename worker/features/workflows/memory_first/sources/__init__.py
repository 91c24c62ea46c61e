"""Source texts of a workflow job."""
