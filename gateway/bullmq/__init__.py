"""The door to BullMQ's queues: what clients may put in, and what they see of it."""
