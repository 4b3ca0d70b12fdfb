"""The GPUs of this host: NVML, their lock, their telemetry and their peaks."""
