"""Commands for images, documents and workflows."""
