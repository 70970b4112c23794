"""The store of one stream: blocks, limits, removal, upkeep, our files beside it."""
