"""A graph rewrite and a fusion rule that are no part of tilestitch."""
