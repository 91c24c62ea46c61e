"""Requests and responses of the HTTP API, without a transport."""
