"""The driver: what is measured when, by which server."""
