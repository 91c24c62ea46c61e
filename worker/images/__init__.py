"""Images: the tool `image.process`, what it finds in them, and who looks after them."""
