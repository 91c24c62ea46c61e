"""Clients that the usual generators make from the OpenAPI document call a real gateway."""
