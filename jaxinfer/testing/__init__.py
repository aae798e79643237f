"""What only tests hand in; nothing here is reachable from a setting, a variable or a route."""
