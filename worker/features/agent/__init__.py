"""Chat with tools, step by step."""
