"""The torch side: a worker's tasks."""
