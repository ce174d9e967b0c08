"""The stages of one scheduling decision: variant, filters, constraints, prices, slow start."""
