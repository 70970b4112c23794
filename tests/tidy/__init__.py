"""Style held by tests: imports, sizes, dead files, documents that drift."""
