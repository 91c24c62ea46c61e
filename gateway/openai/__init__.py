"""The façade for OpenAI's SDKs: requests become jobs, a job's events and end answers."""
