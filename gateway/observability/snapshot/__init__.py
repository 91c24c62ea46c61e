"""Facts about Redis, partitions and limits that metrics and status read."""
