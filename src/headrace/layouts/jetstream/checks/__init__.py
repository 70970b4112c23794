"""Looking at a directory: inspect, verify, and what the files say of each other."""
