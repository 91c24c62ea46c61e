"""How things went: samples, the rings that keep them, and what is shown of them."""
