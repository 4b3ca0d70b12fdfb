"""Commands about what is stored: baselines, waivers, calibrations."""
