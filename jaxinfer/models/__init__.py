"""Model families: config.json to ModelConfig, the table of parameters, and the forward pass as pure functions."""
