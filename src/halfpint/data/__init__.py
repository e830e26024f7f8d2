"""Text on its way to a model."""
