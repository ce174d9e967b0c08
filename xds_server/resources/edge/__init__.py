"""What operators ask of the edge: tokens, browsers, compression, limits, connections."""
