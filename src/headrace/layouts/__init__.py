"""One package per product. Layouts know files, never a client, and never each other."""
