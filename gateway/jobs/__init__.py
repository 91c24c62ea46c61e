"""`/v1/jobs`: submit, read, list, watch and cancel jobs."""
