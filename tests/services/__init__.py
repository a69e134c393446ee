"""Real servers for tests, each started and stopped by the test session itself, on a private socket or loopback."""
