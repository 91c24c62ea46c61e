"""`/v1/stats`: samples of the last two weeks."""
