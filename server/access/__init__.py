"""Who may call, by which name the server knows them, and how much each may ask for."""
