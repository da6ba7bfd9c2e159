"""`attendant bench`: how fast a bundle is served on this host, and by which options it is served best."""
