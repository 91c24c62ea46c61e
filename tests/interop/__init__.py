"""Node's BullMQ and Sluice on the same queues, in both directions."""
