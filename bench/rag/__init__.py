"""How well documents are found: our own ones, by questions that people might ask."""
