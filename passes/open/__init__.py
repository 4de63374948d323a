"""Plans of graphs with open dimensions: made at typical sizes, and lifted to all sizes of the range."""
