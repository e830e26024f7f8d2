"""What a model costs: counted from its config, and measured on this machine."""
