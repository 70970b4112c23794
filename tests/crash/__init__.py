"""What the store keeps when the power goes, the disk refuses, a bit flips or the process is killed."""
