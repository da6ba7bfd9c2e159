"""Other toolkits' models beside ours, trained as long on the same pairs."""
