"""`/v1/images`: upload, watch and fetch images."""
