"""History of queue, jobs and workers over the last two weeks, behind `/v1/stats`."""
