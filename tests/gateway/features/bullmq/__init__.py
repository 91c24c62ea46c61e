"""The door to the queues of BullMQ."""
