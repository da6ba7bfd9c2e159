"""The pronunciation model that comes along: graphs so small that what is around them counts."""
