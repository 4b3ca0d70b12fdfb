"""Every file that lasts."""
