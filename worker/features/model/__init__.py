"""The client of the model server."""
