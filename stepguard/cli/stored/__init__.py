"""Commands about what is stored: evidence, baselines and waivers."""
