"""GPUs seen from outside: which there are, who holds them, what they did, what they can do."""
