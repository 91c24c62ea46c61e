"""Documents: ingestion, search and answers with citations."""
