"""Foreign weights in and out: one name map for each family, and the `transformers` adapter."""
