"""Plans of graphs with open dimensions: made at typical sizes, and carried over to all sizes of the range."""
