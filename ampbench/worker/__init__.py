"""The torch side: measures one request at a time in a process of its own."""
