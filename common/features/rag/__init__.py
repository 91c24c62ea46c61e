"""Documents and ontologies as they are stored in Redis."""
