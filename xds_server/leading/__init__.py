"""One of several control servers leads, the others follow."""
