"""The types of what travels: items, and the functions that a server runs itself."""
