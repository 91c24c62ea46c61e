"""Chat with tools: the agent loop."""
