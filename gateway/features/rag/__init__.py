"""`/v1/rag`: documents, search and ontologies."""
