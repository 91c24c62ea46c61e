"""Image records, their scripts and the storage of image files."""
