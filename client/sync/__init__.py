"""The client that waits for each answer; of the standard library alone, so that it starts fast."""
