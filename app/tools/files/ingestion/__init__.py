"""Indexing of files: extract the text, cut it into chunks, embed and store them."""
