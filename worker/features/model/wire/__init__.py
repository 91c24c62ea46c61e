"""The HTTP protocol of OpenAI-compatible model servers."""
