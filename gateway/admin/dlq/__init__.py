"""Dead letters: list, group and redrive."""
