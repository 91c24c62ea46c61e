"""Where image files are kept: a directory or an S3 bucket."""
