"""From the files of a stream to a store that can be used, whatever happened to them."""
