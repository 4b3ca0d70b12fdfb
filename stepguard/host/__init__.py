"""What runs in the calling process: it starts worker groups, watches the machine, keeps files."""
