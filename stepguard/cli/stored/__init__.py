"""Commands about what is stored: evidence, baselines, waivers, calibrations."""
