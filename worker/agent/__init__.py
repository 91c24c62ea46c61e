"""A model that uses tools, round by round."""
