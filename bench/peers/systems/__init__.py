"""One file per system: job, worker and client. Each runs in the virtualenv of its package."""
