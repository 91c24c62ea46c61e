"""`/v1/tools`: the tools of live workers."""
