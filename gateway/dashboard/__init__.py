"""The pages at /ui: their files, and who may do what from them."""
