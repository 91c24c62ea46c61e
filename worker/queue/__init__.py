"""Taking messages from the queue: reader, slots, limits, recovery."""
