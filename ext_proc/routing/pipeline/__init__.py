"""The stages of one scheduling decision: filters, prices, slow start, preferences, the order."""
