"""The run of one attempt: executor, context, lease, outcome."""
