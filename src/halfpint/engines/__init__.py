"""How a model runs: behind one small interface, answers in NumPy."""
