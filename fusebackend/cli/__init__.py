"""The `fusebackend` command: one module per subcommand, `serve` for the process behind a mount."""
