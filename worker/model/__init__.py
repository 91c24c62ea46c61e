"""The way to a model: any server that speaks OpenAI's HTTP dialect."""
