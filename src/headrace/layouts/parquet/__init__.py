"""An archive: messages of any layout in Parquet files, with a manifest that says what belongs to it. See FORMAT.md."""
