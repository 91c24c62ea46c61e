"""Storage of image files in a directory or an S3 bucket, and the spool of uploads."""
