"""The image API: create, upload, watch, fetch; and the consumer of what pipelines tell."""
