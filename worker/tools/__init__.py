"""What jobs and models may do beside talking."""
