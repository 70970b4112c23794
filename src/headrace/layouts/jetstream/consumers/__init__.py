"""Where the consumers of a stream stand: state file, journal, recovery."""
