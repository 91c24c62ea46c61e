"""One file a system: its job, its worker, its client. Each runs where its package is installed."""
