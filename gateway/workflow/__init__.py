"""The workflow API: `/api/workflow`, in the shapes that its clients know."""
