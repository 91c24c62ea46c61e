"""Takes jobs from the queue and runs them."""
