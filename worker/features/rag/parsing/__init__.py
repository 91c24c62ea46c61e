"""Text from HTML, PDF, Markdown and plain files."""
