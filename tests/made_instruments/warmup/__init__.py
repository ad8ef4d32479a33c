"""How many steps a case takes until its step time settles."""
