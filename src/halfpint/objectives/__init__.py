"""What a network is trained for: small objects of pure functions."""
