"""Servers that do a part of what Antiphon does, to show what that part costs: passing bytes on, and translating."""
