"""HTTP: middleware, protocol limits, problems, OpenAPI."""
