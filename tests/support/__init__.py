"""What several tests share: the real peers, the golden directories."""
