"""The client for asyncio: the same names, to be awaited."""
