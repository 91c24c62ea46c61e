"""What a user of the HTTP API runs. Knows the API only, not the code behind it."""
