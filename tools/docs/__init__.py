"""The documentation site: `make docs-site` builds it from the Markdown files of the repository."""
