"""`predict`, `embed` and `search`: a model over files."""
