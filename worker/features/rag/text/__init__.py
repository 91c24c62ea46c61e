"""Languages, terms and chunks."""
