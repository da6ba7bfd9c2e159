"""Models that come and go: folders of versions, and what is served of them while they change."""
