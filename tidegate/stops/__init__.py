"""Stops of programs that would cut answers if they only got SIGTERM."""
