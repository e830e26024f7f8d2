"""Training: one loop for every objective, and what surrounds it."""
